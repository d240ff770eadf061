"""The XDP programs of a server's net_af_xdp ports: made before DPDK starts, taken off where a server left them."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from netreplay.appliance.config import PortConfig
from netreplay.appliance.interface import Interface, is_received_from, kernels, look, program_name, take_off
from netreplay.appliance.port import PortError
from netreplay.appliance.xdp import NAME, Wanted, program


class Filters:
    """`programs`: by the port's name the path of its object file, as long as this is open: DPDK reads it when the port
    opens, and attaches the program. PortError says what is in the way.

    DPDK takes the program off when the port closes. After a crash it stays, and passes everything to the kernel; the
    next server of the interface replaces it.
    """

    def __init__(self, ports: tuple[PortConfig, ...]) -> None:
        self.programs: dict[str, str] = {}
        self._files: list[int] = []
        self._interfaces: list[str] = []
        try:
            for port in ports:
                if port.is_af_xdp:
                    self._prepare(port)
        except BaseException:
            self._close()
            raise

    def _prepare(self, port: PortConfig) -> None:
        given, name = port.argument("xdp_prog"), port.argument("iface")
        if given is not None:
            _check(port, given)
        try:
            interface = look(name or "")
        except OSError:
            return  # DPDK says it better
        _free(port, interface)
        if not port.filtered:
            return
        if interface.name in self._interfaces:
            raise _refused(port, errno.EBUSY, f"two ports at {name} need filter = false: one program has one socket")
        self._interfaces.append(interface.name)
        addresses = (*(address.host for address in port.addresses), interface.link_local)
        answers = tuple(address for address in addresses if not kernels(interface, address))
        file = os.memfd_create(f"{NAME}-{port.name}"[:200], os.MFD_CLOEXEC)
        self._files.append(file)
        os.write(file, program(Wanted(port.port, addresses, answers)))
        self.programs[port.name] = f"/proc/self/fd/{file}"

    def _close(self) -> None:
        while self._files:
            os.close(self._files.pop())

    def __enter__(self) -> Filters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()
        if kind is None:
            return
        for name in self._interfaces:  # DPDK leaves it there when the port does not open after all
            with suppress(OSError):
                _take_ours_off(look(name))


def _refused(port: PortConfig, error: int, text: str) -> PortError:
    refused = PortError(f"port.{port.name}: {port.device}: {text}")
    refused.errno = error
    return refused


def _check(port: PortConfig, path: str) -> None:
    """The program that the device's arguments name."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise _refused(port, error.errno or 0, f"xdp_prog: {path}: {error.strerror}") from None
    if not data.startswith(b"\x7fELF") or b"xsks_map\0" not in data:
        raise _refused(port, errno.EINVAL, f"xdp_prog: {path} is no BPF object file with a map named xsks_map")


def _take_ours_off(interface: Interface) -> bool:
    """Whether there was one of ours that nobody receives by."""
    if interface.program == 0 or program_name(interface) != NAME or is_received_from(interface):
        return False
    take_off(interface)
    return True


def _free(port: PortConfig, interface: Interface) -> None:
    """Makes sure that DPDK can attach a program. Without a filter, one that libxdp shares may be there."""
    try:
        if interface.mode == 0 or _take_ours_off(interface):
            return
    except OSError as error:
        raise _refused(port, error.errno or 0, f"cannot look at the XDP program of {interface.name}: {error}") from None
    name = program_name(interface) or f"number {interface.program}"
    if name == NAME:
        raise _refused(port, errno.EBUSY, f"another server receives from {interface.name}")
    if port.filtered or port.argument("xdp_prog") is not None:
        raise _refused(
            port,
            errno.EBUSY,
            f"{interface.name} has an XDP program, {name}: if nobody needs it, `ip link set {interface.name} xdp off`",
        )
