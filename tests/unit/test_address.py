"""Addresses that users write, and the words for those that are wrong."""

from __future__ import annotations

import pytest

from netreplay.address import Address, parse, split_host_port
from netreplay.errors import BadAddressError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("udp://10.0.0.7:7447", Address("udp", "10.0.0.7", 7447, "")),
        ("udp://10.0.0.7", Address("udp", "10.0.0.7", 7447, "")),
        ("udp://replay.cluster:9/", Address("udp", "replay.cluster", 9, "")),
        ("udp://[::1]:8000", Address("udp", "::1", 8000, "")),
        ("vhost:///run/netreplay/a.sock", Address("vhost", "", 0, "/run/netreplay/a.sock")),
        ("udp://[fe80::1]", Address("udp", "fe80::1", 7447, "")),
        ("local:pong.toml", Address("local", "", 0, "pong.toml")),
        ("local:/a b/pong.toml", Address("local", "", 0, "/a b/pong.toml")),
        ("local:", Address("local", "", 0, "")),
    ],
)
def test_addresses_are_read(url, expected):
    assert parse(url) == expected
    assert parse(str(parse(url))) == expected


WRONG = ["", "udp", "udp:10.0.0.7:7447", "udp://", "udp://:7447", "udp://host:port", "udp://host:70000", "udp://host:0"]
WRONG += ["vhost:", "vhost://", "vhost://a/b", "vhost:///a/", "vhost:/" + 107 * "a", "vhost:///a\0b"]
WRONG += ["udp://::1:7447", "udp://a@b:1", "udp://host:1/path", "tcp://host:1", "http://x", "localhost:7447"]


@pytest.mark.parametrize("url", [*WRONG, 7, None])
def test_what_is_no_address_is_refused_with_what_would_be(url):
    with pytest.raises(BadAddressError, match=r"^address .*: ") as caught:
        parse(url)
    assert repr(url) in str(caught.value) or str(url).removeprefix("udp://").rstrip("/") in str(caught.value)


def test_listening_takes_port_0():
    assert split_host_port("0.0.0.0:0") == ("0.0.0.0", 0)
