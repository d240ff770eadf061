"""Addresses: `udp://host:port`, `local:file.toml`, `local:`."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from netreplay.errors import BadAddressError, NotYetError

DEFAULT_PORT = 7447


class Address(NamedTuple):
    """A parsed address."""

    scheme: str
    """udp or local"""
    host: str
    """of udp: name or numeric address, IPv6 without brackets"""
    port: int
    """of udp"""
    path: str
    """of local: the TOML file, "" for none"""

    def __str__(self) -> str:
        if self.scheme == "local":
            return f"local:{self.path}"
        return f"udp://{host_port(self.host, self.port)}"


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
    if colon and scheme == "udp" and rest.startswith("//"):
        host, port = split_host_port(rest[2:].rstrip("/"))
        if port == 0:
            raise BadAddressError(f"address {url!r}: port 0 is no port that a server can be reached at", value=url)
        return Address("udp", host, port, "")
    if colon and scheme == "vhost":
        raise NotYetError(f"address {url!r}: vhost is not there yet; use udp:// or local:")
    raise BadAddressError(
        f"address {url!r}: wanted is udp://host:port, local:file.toml, or local: with spec=", value=url
    )
