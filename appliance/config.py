"""What an appliance is told: [server], [port.NAME] and [eal] of its TOML file, and flags that override them."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from netreplay.address import DEFAULT_PORT, Address, parse_listen
from netreplay.errors import BadAddressError, NotYetError, SpecError
from netreplay.spec import Spec
from netreplay.spec_toml import only, parse_bytes, parse_spec, read, refuse, table_at

POLLS = ("adaptive", "busy")
MAX_SESSIONS = 65_536
MOST_SEED = 2**63 - 1  # TOML's integers
MOST_LINKS = 8  # NR_APPLIANCE_LINKS
MOST_VHOST_CLIENTS = 1024  # NR_VHOST_MOST_CLIENTS
LEAST_DATAGRAM, MOST_DATAGRAM = 1200, 8972  # NR_MIN_DATAGRAM, NR_MAX_DATAGRAM
LEAST_MTU, MOST_MTU = 1280, 9000
_PCI = re.compile(r"([0-9a-fA-F]{4}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_VDEV = re.compile(r"net_[a-z0-9_]+(,\S+)?")


@dataclass(frozen=True)
class PortConfig:
    """A DPDK port that the appliance serves on."""

    name: str
    """of the [port.NAME] part"""
    device: str
    """PCI address ("0000:03:00.0"), or a virtual device with its arguments ("net_af_packet0,iface=eth1")"""
    ip4: str | None = None
    """its IPv4 address"""
    ip6: str | None = None
    """its IPv6 address"""
    port: int = DEFAULT_PORT
    """UDP port"""
    mtu: int = 1500
    """bytes of an IP packet"""
    descriptors: int = 0
    """of each queue; 0: as many as the credits of clients can fill"""
    filter: bool = True
    """net_af_xdp only: leaves to the kernel what is not for this port"""

    @property
    def addresses(self) -> list[Address]:
        """What clients connect to."""
        return [Address("udp", ip, self.port, "") for ip in (self.ip4, self.ip6) if ip is not None]

    @property
    def physical(self) -> bool:
        """Whether it is a PCI device."""
        return _PCI.fullmatch(self.device) is not None

    def argument(self, name: str) -> str | None:
        """An argument of a virtual device, `name=...`."""
        given = (word.partition("=") for word in self.device.split(",")[1:])
        return next((value for key, _, value in given if key == name), None)

    @property
    def filtered(self) -> bool:
        """Whether it gets an XDP program of ours."""
        return self.filter and self.is_af_xdp and self.argument("xdp_prog") is None

    @property
    def is_af_xdp(self) -> bool:
        """Whether its driver is net_af_xdp."""
        return self.device.startswith("net_af_xdp")


@dataclass(frozen=True)
class EalConfig:
    """How DPDK starts."""

    hugepages: bool = False
    """take memory from reserved hugepages"""
    memory: int = 256 << 20
    """bytes for DPDK's packet buffers"""
    arguments: tuple[str, ...] = ()
    """handed on to EAL as they are, last"""


@dataclass(frozen=True)
class CheckpointConfig:
    """Where a server saves what it holds, and from where it starts again."""

    path: Path
    """the file; beside it, while one is being written, the same name with ".partial" behind it"""
    every: float | None = None
    """seconds from the end of one checkpoint to the next; None: none but on stop"""
    on_stop: bool = True
    """write one when the server is stopped"""


@dataclass(frozen=True)
class ServerConfig:
    """How to serve. Without a key, `auth = "off"` must be written for udp: whoever reaches the port may then read and
    write. Who reaches a vhost socket is decided by the mode of its file."""

    listen: tuple[Address, ...] = (Address("udp", "127.0.0.1", DEFAULT_PORT, ""),)
    """udp://host:port (port 0: any free one; "0.0.0.0" or "::" for every interface) and vhost:///path/to.sock"""
    auth: str | None = None
    poll: str = "adaptive"
    """"adaptive" sleeps when there is nothing to do, "busy" keeps its core"""
    sessions: int = 1024
    """clients at once"""
    session_timeout: float = 60.0
    """seconds after which a silent client's place may be given away"""
    max_datagram: int = 0
    """bytes of UDP payload offered to clients; 1200 to 8972, or 0: as much as the C takes"""
    memory: int | None = None
    """bytes that all may take; None: what is available"""
    vhost_clients: int = 64
    """clients at once on each vhost socket"""
    vhost_mode: int = 0o660
    """of the vhost socket's file"""
    core: int | None = None
    """the processor core that the loop is pinned to; None: any"""
    seed: int | None = None
    """of draws, random removals and the first generations of keys; None: another at each start"""
    checkpoint: CheckpointConfig | None = None
    """where to save, and to restore from; None: a stopped server's items are gone"""
    ports: tuple[PortConfig, ...] = ()
    """DPDK ports to serve on besides"""
    eal: EalConfig = field(default_factory=EalConfig)
    """how DPDK starts; only looked at with ports"""


def _whole(path: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise refuse(path, value, "is not a whole number")
    if not low <= value <= high:
        raise refuse(path, value, f"is not between {low} and {high}")
    return value


def _listen(value: Any) -> tuple[Address, ...]:
    """server.listen: one address or a list of them."""
    texts = value if isinstance(value, list) else [value]
    if not 1 <= len(texts) <= MOST_LINKS:
        raise refuse("server.listen", value, f"is not one address, nor a list of 1 to {MOST_LINKS}")
    try:
        return tuple(parse_listen(text) for text in texts)
    except BadAddressError as error:
        raise SpecError(f"server.listen: {error}", path="server.listen", value=value) from None


def _checkpoint(value: Any) -> CheckpointConfig:
    """server.checkpoint: a table."""
    path = "server.checkpoint"
    entries = dict(table_at(path, value))
    only(path, entries, [f.name for f in fields(CheckpointConfig)])
    where = entries.get("path")
    if not isinstance(where, str) or not where or "\0" in where or where.endswith("/"):
        raise refuse(f"{path}.path", where, "is not the path of a file")
    entries["path"] = Path(os.path.realpath(where))  # what a link names is written, the link stays
    every = entries.get("every")
    if every is not None and (isinstance(every, bool) or not isinstance(every, int | float) or not 0 < every <= 1e9):
        raise refuse(f"{path}.every", every, "is not a number of seconds above 0")
    if not isinstance(entries.get("on_stop", True), bool):
        raise refuse(f"{path}.on_stop", entries["on_stop"], "is not true or false")
    return CheckpointConfig(**entries)


def _mode(value: Any) -> int:
    """A file's mode, written as in chmod(1)."""
    try:
        mode = int(value, 8) if isinstance(value, str) else -1
    except ValueError:
        mode = -1
    if not 0 < mode <= 0o777:
        raise refuse("server.vhost_mode", value, 'is not a file mode such as "0660", as text')
    return mode


def parse_server(value: Any) -> ServerConfig:
    """A [server] part; SpecError names key and value."""
    entries = dict(table_at("server", value))
    only("server", entries, [f.name for f in fields(ServerConfig) if f.name not in ("ports", "eal")])
    if "listen" in entries:
        entries["listen"] = _listen(entries["listen"])
    for key, low, high in (
        ("sessions", 1, MAX_SESSIONS),
        ("vhost_clients", 1, MOST_VHOST_CLIENTS),
        ("core", 0, 4095),
        ("seed", 0, MOST_SEED),
    ):
        if key in entries:
            _whole(f"server.{key}", entries[key], low, high)
    if "checkpoint" in entries:
        entries["checkpoint"] = _checkpoint(entries["checkpoint"])
    if "vhost_mode" in entries:
        entries["vhost_mode"] = _mode(entries["vhost_mode"])
    if "max_datagram" in entries:
        size = entries["max_datagram"]
        if isinstance(size, bool) or not isinstance(size, int):
            raise refuse("server.max_datagram", size, "is not a whole number")
        if size != 0 and not LEAST_DATAGRAM <= size <= MOST_DATAGRAM:
            raise refuse(
                "server.max_datagram", size, f"is not 0, nor between {LEAST_DATAGRAM} and {MOST_DATAGRAM} (UDP payload)"
            )
    if "memory" in entries:
        entries["memory"] = _whole("server.memory", parse_bytes("server.memory", entries["memory"]), 1, 2**62)
    if "session_timeout" in entries:
        seconds = entries["session_timeout"]
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.1 <= seconds <= 86_400:
            raise refuse("server.session_timeout", seconds, "is not a number of seconds between 0.1 and 86400")
    if "poll" in entries and entries["poll"] not in POLLS:
        raise refuse("server.poll", entries["poll"], f"is not one of {', '.join(POLLS)}")
    if "auth" in entries and entries["auth"] != "off":
        raise refuse("server.auth", entries["auth"], 'is not "off", the only choice until keys are there')
    return ServerConfig(**entries)


def _address(path: str, value: Any, version: int) -> str:
    try:
        found = ipaddress.ip_address(value) if isinstance(value, str) else None
    except ValueError:
        found = None
    if found is None or found.version != version or found.is_multicast or found.is_unspecified:
        raise refuse(path, value, f"is not an IPv{version} address of one host")
    return str(found)


def _filter(path: str, value: Any, device: str) -> None:
    if not isinstance(value, bool):
        raise refuse(path, value, "is not true or false")
    if not device.startswith("net_af_xdp"):
        raise refuse(path, value, f"is of net_af_xdp only, and the device is {device!r}")
    if value and ",xdp_prog=" in device:
        raise refuse(path, value, f"would replace the program that the device names: {device!r}")


def parse_ports(value: Any) -> tuple[PortConfig, ...]:
    """The [port.NAME] parts; SpecError names key and value."""
    ports = []
    for name, table in table_at("port", value).items():
        path = f"port.{name}"
        entries = dict(table_at(path, table))
        only(path, entries, [f.name for f in fields(PortConfig) if f.name != "name"])
        device = entries.get("device")
        if not isinstance(device, str) or not (_PCI.fullmatch(device) or _VDEV.fullmatch(device)):
            raise refuse(
                f"{path}.device",
                device,
                'is neither a PCI address ("0000:03:00.0") nor a virtual device ("net_af_packet0,iface=eth1")',
            )
        for key, version in (("ip4", 4), ("ip6", 6)):
            if key in entries:
                entries[key] = _address(f"{path}.{key}", entries[key], version)
        if "ip4" not in entries and "ip6" not in entries:
            raise refuse(f"{path}.ip4", None, "is missing, and so is ip6: one of them is what clients connect to")
        for key, low, high in (("port", 1, 65_535), ("mtu", LEAST_MTU, MOST_MTU), ("descriptors", 0, 32_768)):
            if key in entries:
                _whole(f"{path}.{key}", entries[key], low, high)
        if "filter" in entries:
            _filter(f"{path}.filter", entries["filter"], device)
        ports.append(PortConfig(name=name, **entries))
    return tuple(ports)


def parse_eal(value: Any) -> EalConfig:
    """The [eal] part; SpecError names key and value."""
    entries = dict(table_at("eal", value))
    only("eal", entries, [f.name for f in fields(EalConfig)])
    if "hugepages" in entries and not isinstance(entries["hugepages"], bool):
        raise refuse("eal.hugepages", entries["hugepages"], "is not true or false")
    if "memory" in entries:
        entries["memory"] = _whole("eal.memory", parse_bytes("eal.memory", entries["memory"]), 16 << 20, 2**40)
    if "arguments" in entries:
        arguments = entries["arguments"]
        if not isinstance(arguments, list) or not all(isinstance(word, str) and word for word in arguments):
            raise refuse("eal.arguments", arguments, "is not a list of words")
        entries["arguments"] = tuple(arguments)
    return EalConfig(**entries)


def load(path: str | Path) -> tuple[Spec, ServerConfig]:
    """The spec and the server's part of a TOML file (or TOML text)."""
    document = read(path)
    if "key" in document.get("server", {}):
        raise NotYetError('server.key: authentication is not there yet; leave it out and write auth = "off"')
    server = parse_server(document.get("server", {}))
    ports = parse_ports(document.pop("port", {}))
    if ports and "listen" not in document.get("server", {}):
        server = replace(server, listen=())
    server = replace(server, ports=ports, eal=parse_eal(document.pop("eal", {})))
    return parse_spec(document), server


def override(config: ServerConfig, **flags: Any) -> ServerConfig:
    """The config with the flags that were given (not None)."""
    given = {key: value for key, value in flags.items() if value is not None}
    if "listen" in given:
        given["listen"] = tuple(parse_listen(text) for text in given["listen"])
    return replace(config, **given)


def require_auth(config: ServerConfig) -> None:
    """Refuses a server that does not say how it authenticates those who come by the network."""
    if config.auth is None and (config.ports or any(address.scheme != "vhost" for address in config.listen)):
        raise SpecError(
            'server.auth: is missing; without keys (not there yet) write auth = "off" under [server], or --auth off: '
            "whoever reaches the port may then read and write",
            path="server.auth",
            value=None,
        )
