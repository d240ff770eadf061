"""DPDK's environment abstraction layer (EAL): its arguments from the config, its start, its errors in one line.

Only a process that serves on DPDK ports loads DPDK, once, for its life. Nothing here falls back to the kernel.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from netreplay.appliance.config import PortConfig, ServerConfig
from netreplay.dpdk import DpdkMissingError, load
from netreplay.errors import NetreplayError


class EalError(NetreplayError, RuntimeError):
    """DPDK does not start; the message says what to do. `said` is all that EAL said."""

    said: str = ""


# (what EAL says, what it means and the way out), the first that matches
_HUGEPAGES = (
    "too few hugepages are free for eal.memory ({memory} MiB): reserve more (`sysctl vm.nr_hugepages={pages}` for "
    "pages of 2 MiB), or write eal.hugepages = false"
)
_TRANSLATIONS: tuple[tuple[str, str], ...] = (
    (r"[Nn]o (?:free|available) \d+ kB hugepages|No free hugepages reported", _HUGEPAGES),
    (r"Cannot get hugepage information|couldn't find suitable memory|Not enough memory available", _HUGEPAGES),
    (r"could not open AF_PACKET socket", "no permission for a packet socket: CAP_NET_RAW is needed"),
    (r"invalid core list|invalid coremask|lcore \d+ unavailable", "server.core: {core} is no core of this process"),
    (r"failed to parse device \"?([^\s\"]+)", "port.device: {0} is no device that DPDK knows"),
    (r"Driver cannot attach the device \(([^)]+)\)", "the device {0} does not start; {detail}"),
    (r"Cannot find (?:device|plug) ?\"?\(?([^\s\")]+)", "there is no device {0}"),
    (r"no supported rule|unrecognized option|invalid option", "eal.arguments: {first} is refused by EAL"),
    (r"Requested device ([^\s]+) cannot be used", "{0} cannot be used: bind it to a user-space driver (docs/ports.md)"),
    (r"Permission denied", "no permission: let root run it, or give the user the device's rights (docs/ports.md)"),
)


def arguments(config: ServerConfig, programs: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """The command line that EAL gets, the program's name first. `programs`: as Filters has them, by the port's name."""
    core = config.core if config.core is not None else max(os.sched_getaffinity(0))
    words = ["netreplay", "-l", str(core), "--file-prefix", f"netreplay-{os.getpid()}", "--no-telemetry"]
    words += ["-m", str(config.eal.memory >> 20), "--in-memory" if config.eal.hugepages else "--no-huge"]
    physical = [port.device for port in config.ports if port.physical]
    words += [word for device in physical for word in ("-a", device)] if physical else ["--no-pci"]
    for port in config.ports:
        if not port.physical:
            words += ["--vdev", port.device + (f",xdp_prog={programs[port.name]}" if port.name in programs else "")]
    return [*words, *config.eal.arguments]


def translate(said: str, config: ServerConfig) -> str:
    """One line for what EAL said when it would not start."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    memory = config.eal.memory >> 20
    telling = [line for line in lines if re.search(r"[Ee]rror|[Cc]annot|[Ff]ailed|[Nn]o such", line)]
    detail = (telling or lines or ["it gave no reason"])[0]
    for pattern, text in _TRANSLATIONS:
        found = re.search(pattern, said)
        if found is not None:
            first = " ".join(config.eal.arguments) or found.group(0)
            return text.format(
                *found.groups(), memory=memory, pages=-(-memory // 2), core=config.core, first=first, detail=detail
            )
    return detail


_DEVICE_TRANSLATIONS: tuple[tuple[str, str], ...] = (
    (r"Could not open AF_PACKET socket", "no permission for a packet socket: CAP_NET_RAW is needed"),
    (r"SIOCGIFINDEX\) ?: ?No such device", "there is no such interface: `ip link` shows those that there are"),
    (r"Operation not permitted|Permission denied", "no permission: let root run it (docs/ports.md)"),
)
_CHATTER = re.compile(
    r"EAL: (Detected|Multi-process|Physical|Selected|Bus|VFIO|No )|failed to initialize|^libbpf|^libxdp"
)


def why_missing(port: PortConfig, said: str) -> str:
    """Why EAL, which started, made no port of this device: one line with the way out. `said`: what it said."""
    if port.physical:
        device = Path("/sys/bus/pci/devices") / (port.device if port.device.count(":") == 2 else f"0000:{port.device}")
        if not device.exists():
            return "there is no such PCI device: `lspci -D` shows those that there are"
        driver = (device / "driver").resolve().name if (device / "driver").exists() else "none"
        return (
            f"is bound to the driver {driver!r}, and DPDK wants one of user space: `dpdk-devbind.py -b vfio-pci "
            f"{port.device}` (docs/ports.md)"
        )
    for pattern, text in _DEVICE_TRANSLATIONS:
        if re.search(pattern, said):
            return text
    lines = [line.strip() for line in said.splitlines() if line.strip() and not _CHATTER.search(line)]
    return f"DPDK does not make it: {lines[0] if lines else 'it gave no reason'}"


def start(config: ServerConfig, programs: Mapping[str, str]) -> tuple[Any, str]:
    """Starts EAL for the config's ports: the loaded `_dpdk`, and what EAL said. EalError, DpdkMissingError."""
    dpdk = load()
    ffi, lib = dpdk.ffi, dpdk.lib
    folder = ffi.string(lib.nr_eal_driver_folder()).decode()
    if folder and not os.path.isdir(folder):  # noqa: PTH112
        raise DpdkMissingError(f"DPDK's drivers are not at {folder}: apt-get install dpdk (or librte-net-*)")
    words = [ffi.new("char[]", word.encode()) for word in arguments(config, programs)]
    text = ffi.new("char[]", lib.NR_EAL_TEXT)
    status = lib.nr_eal_start(len(words), ffi.new("const char *[]", words), text)
    if status != 0:
        said = ffi.string(text).decode(errors="replace")
        error = EalError(f"DPDK does not start: {translate(said, config)}")
        error.said = said
        raise error
    return dpdk, ffi.string(text).decode(errors="replace")
