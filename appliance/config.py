"""What an appliance is told: the [server] part of its TOML file, and flags that override it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from netreplay.address import DEFAULT_PORT, host_port, split_host_port
from netreplay.errors import BadAddressError, NotYetError, SpecError
from netreplay.spec import Spec
from netreplay.spec_toml import only, parse_bytes, parse_spec, read, refuse, table_at

POLLS = ("adaptive", "busy")
MAX_SESSIONS = 65_536
LEAST_DATAGRAM, MOST_DATAGRAM = 1200, 8972  # NR_MIN_DATAGRAM, NR_MAX_DATAGRAM


@dataclass(frozen=True)
class ServerConfig:
    """How to serve. Without a key, `auth = "off"` must be written: whoever reaches the port may then read and write."""

    host: str = "127.0.0.1"
    """numeric address or name to listen on; "0.0.0.0" or "::" for every interface"""
    port: int = DEFAULT_PORT
    """0 takes any free one"""
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

    def __str__(self) -> str:
        return f"udp://{host_port(self.host, self.port)}"


def _whole(path: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise refuse(path, value, "is not a whole number")
    if not low <= value <= high:
        raise refuse(path, value, f"is not between {low} and {high}")
    return value


def parse_server(value: Any) -> ServerConfig:
    """A [server] part; SpecError names key and value."""
    entries = dict(table_at("server", value))
    only("server", entries, [*(f.name for f in fields(ServerConfig)), "listen"])
    if "listen" in entries:
        listen = entries.pop("listen")
        for key in ("host", "port"):
            if key in entries:
                raise refuse(f"server.{key}", entries[key], "says again what server.listen says")
        try:
            entries["host"], entries["port"] = split_host_port(listen)
        except BadAddressError as error:
            raise SpecError(f"server.listen: {error}", path="server.listen", value=listen) from None
    for key in ("host",):
        if key in entries and (not isinstance(entries[key], str) or not entries[key]):
            raise refuse(f"server.{key}", entries[key], "is not an address to listen on")
    for key, low, high in (("port", 0, 65_535), ("sessions", 1, MAX_SESSIONS)):
        if key in entries:
            _whole(f"server.{key}", entries[key], low, high)
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


def load(path: str | Path) -> tuple[Spec, ServerConfig]:
    """The spec and the server's part of a TOML file (or TOML text)."""
    document = read(path)
    if "key" in document.get("server", {}):
        raise NotYetError('server.key: authentication is not there yet; leave it out and write auth = "off"')
    server = parse_server(document.get("server", {}))
    return parse_spec(document), server


def override(config: ServerConfig, **flags: Any) -> ServerConfig:
    """The config with the flags that were given (not None)."""
    given = {key: value for key, value in flags.items() if value is not None}
    listen = given.pop("listen", None)
    if listen is not None:
        given["host"], given["port"] = split_host_port(listen)
    return replace(config, **given)


def require_auth(config: ServerConfig) -> None:
    """Refuses a server that does not say how it authenticates."""
    if config.auth is None:
        raise SpecError(
            'server.auth: is missing; without keys (not there yet) write auth = "off" under [server], or --auth off: '
            "whoever reaches the port may then read and write",
            path="server.auth",
            value=None,
        )
