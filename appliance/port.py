"""DPDK ports as packet I/O of a server: from a [port.NAME] part to what the loop polls."""

from __future__ import annotations

import errno
import ipaddress
import os
from typing import Any, NamedTuple

from netreplay._binding import ffi, lib
from netreplay.appliance.config import PortConfig, ServerConfig
from netreplay.appliance.eal import why_missing
from netreplay.errors import SystemRefusedError


class PortError(SystemRefusedError):
    """A DPDK port cannot be opened; the message says what to do."""


class PortInfo(NamedTuple):
    """What a port got, as struct nr_port_info."""

    driver: str
    mac: str
    mtu: int
    rx_descriptors: int
    tx_descriptors: int
    mbufs: int
    memory: int
    """bytes of all packet buffers"""
    zero_copy: bool
    """sampled steps leave without a copy"""

    def __str__(self) -> str:
        copies = "sends steps without a copy" if self.zero_copy else "copies steps"
        return (
            f"driver {self.driver}, MAC {self.mac}, MTU {self.mtu}, {self.rx_descriptors} and {self.tx_descriptors} "
            f"descriptors, {self.mbufs} packet buffers ({self.memory >> 20} MiB), {copies}"
        )


def open_port(
    started: tuple[Any, str], port: PortConfig, config: ServerConfig, slab: tuple[Any, int]
) -> tuple[Any, PortInfo]:
    """The packet I/O of a port, as `_core` knows it, and what it got. `started`: as eal.start says; PortError."""
    dpdk, eal_said = started
    made = dpdk.ffi.new("struct nr_port_config *")
    name = dpdk.ffi.new("char[]", port.device.partition(",")[0].encode())
    made.device, made.udp_port, made.mtu, made.descriptors = name, port.port, port.mtu, port.descriptors
    made.max_payload = config.max_datagram
    if port.ip4 is not None:
        made.ip4 = list(ipaddress.ip_address(port.ip4).packed)
    if port.ip6 is not None:
        made.ip6 = list(ipaddress.ip_address(port.ip6).packed)
    made.slab = dpdk.ffi.cast("void *", int(ffi.cast("uintptr_t", slab[0])))
    made.slab_bytes = slab[1]
    error, text = dpdk.ffi.new("int *"), dpdk.ffi.new("char[]", 256)
    opened = dpdk.lib.nr_port_open(made, error, text)
    if opened == dpdk.ffi.NULL:
        said = dpdk.ffi.string(text).decode(errors="replace") or os.strerror(-error[0])
        if error[0] == -errno.ENODEV:
            said = why_missing(port, eal_said)
        elif (given := port.argument("xdp_prog")) is not None:
            said += f"; or the kernel refuses the program {given}"
        refused = PortError(f"port.{port.name}: {port.device}: {said}")
        refused.errno = -error[0]
        raise refused
    return ffi.cast("struct nr_packet_io *", int(dpdk.ffi.cast("uintptr_t", opened))), _info(dpdk, opened)


def _info(dpdk: Any, opened: Any) -> PortInfo:
    info = dpdk.ffi.new("struct nr_port_info *")
    dpdk.lib.nr_port_info(opened, info)
    return PortInfo(
        driver=dpdk.ffi.string(info.driver).decode(),
        mac=bytes(info.mac).hex(":"),
        mtu=info.mtu,
        rx_descriptors=info.rx_descriptors,
        tx_descriptors=info.tx_descriptors,
        mbufs=info.mbufs,
        memory=int(info.memory_bytes),
        zero_copy=bool(info.zero_copy),
    )


def slab_of(engine: Any) -> tuple[Any, int]:
    """Where an engine's memory is, and its bytes."""
    size = ffi.new("uint64_t *")
    return lib.nr_engine_memory(engine, size), int(size[0])
