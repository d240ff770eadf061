"""Addresses: `udp://host:port`, `vhost:///path/to.sock`, `local:file.toml`, `local:`."""

from __future__ import annotations

import os
from typing import NamedTuple
from urllib.parse import urlsplit

from netreplay.errors import BadAddressError

DEFAULT_PORT = 7447
MOST_PATH = 107
"""bytes of a Unix socket's path, unix(7)"""


class Address(NamedTuple):
    """A parsed address."""

    scheme: str
    """udp, vhost or local"""
    host: str
    """of udp: name or numeric address, IPv6 without brackets"""
    port: int
    """of udp"""
    path: str
    """of local: the TOML file, "" for none; of vhost: the socket, absolute"""

    def __str__(self) -> str:
        if self.scheme == "local":
            return f"local:{self.path}"
        return f"{self.scheme}://{self.peer}"

    @property
    def peer(self) -> str:
        """Who answers there, as it stands in messages: host:port, or the socket's path."""
        return self.path if self.scheme == "vhost" else host_port(self.host, self.port)


def host_port(host: str, port: int) -> str:
    """As it stands in an address: IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """("10.0.0.7", 7447) from "10.0.0.7:7447", "10.0.0.7", "[::1]:7447"; BadAddressError with the reason."""
    if not isinstance(text, str):
        raise BadAddressError(f"address {text!r}: a str is wanted, such as '127.0.0.1:{default_port}'", value=text)
    try:
        parts = urlsplit(f"udp://{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadAddressError(f"address {text!r}: {error}", value=text) from None
    if parts.path or parts.query or parts.fragment or parts.username is not None:
        raise BadAddressError(f"address {text!r}: only host and port are wanted", value=text)
    if not host or (":" in host and "[" not in text):
        raise BadAddressError(f"address {text!r}: wanted is host:port, with IPv6 as [::1]:{default_port}", value=text)
    return host, default_port if port is None else port


def parse(url: str) -> Address:
    """Reads an address; BadAddressError says what is wrong and what can be written."""
    if not isinstance(url, str):
        raise BadAddressError(f"address {url!r}: a str is wanted, such as 'udp://10.0.0.7:7447'", value=url)
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "local":
        return Address("local", "", 0, rest)
    if scheme in ("udp", "vhost") and rest.startswith("//"):
        address = parse_listen(url)
        if address.scheme == "udp" and address.port == 0:
            raise BadAddressError(f"address {url!r}: port 0 is no port that a server can be reached at", value=url)
        return address
    raise BadAddressError(
        f"address {url!r}: wanted is udp://host:port, vhost:///path/to.sock, local:file.toml, or local: with spec=",
        value=url,
    )


def parse_listen(text: str) -> Address:
    """Reads what a server listens on: an address of udp (port 0: any free one) or vhost, or host:port for udp."""
    if not isinstance(text, str):
        raise BadAddressError(f"address {text!r}: a str is wanted, such as 'vhost:///tmp/replay.sock'", value=text)
    if text.startswith("vhost://"):
        return Address("vhost", "", 0, _socket_path(text))
    host, port = split_host_port(text.removeprefix("udp://").rstrip("/"))
    return Address("udp", host, port, "")


def _socket_path(url: str) -> str:
    path = url.removeprefix("vhost://")
    if not path.startswith("/") or path.endswith("/"):
        raise BadAddressError(
            f"address {url!r}: wanted is vhost:// and a socket's absolute path, as in vhost:///tmp/replay.sock",
            value=url,
        )
    length = len(os.fsencode(path))
    if length > MOST_PATH or "\0" in path:
        raise BadAddressError(
            f"address {url!r}: the path has {length} bytes, and a Unix socket's can have {MOST_PATH}, "
            "none of them zero",
            value=url,
        )
    return path
