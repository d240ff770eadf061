"""connect(): what is refused, and with which way out."""

from __future__ import annotations

import socket
import time

import pytest
from specs import simple

import netreplay
from netreplay.errors import BadAddressError, BadConfigError, NotYetError, RefusedError, SpecError

SPEC = netreplay.Spec.from_toml(simple())


def test_local_reads_a_file(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(simple() + '[server]\nauth = "off"\n')
    with netreplay.connect(f"local:{path}") as replay:
        assert list(replay.tables()) == ["t"]


@pytest.mark.parametrize(
    ("url", "options", "error", "complaint"),
    [
        ("local:", {}, BadAddressError, "names no TOML file"),
        ("local:nowhere.toml", {}, SpecError, r"nowhere\.toml: cannot be read"),
        ("local:a.toml", {"spec": SPEC}, BadAddressError, "one of them is wanted"),
        ("local:", {"spec": simple()}, SpecError, "str is not a Spec"),
        ("local:", {"spec": SPEC, "key": "k"}, NotYetError, "authentication is not there yet"),
        ("udp://127.0.0.1:9", {"key": b"k"}, NotYetError, "authentication is not there yet"),
        ("udp://127.0.0.1:9", {}, RefusedError, "pass auth='off'"),
        ("udp://127.0.0.1:9", {"auth": "on"}, BadConfigError, "auth: 'on' is not 'off'"),
        (
            "udp://127.0.0.1:9",
            {"auth": "off", "poll": "lazy"},
            BadConfigError,
            "poll: 'lazy' is not one of adaptive, busy",
        ),
        ("udp://127.0.0.1:9", {"auth": "off", "timeout": -1}, BadConfigError, "timeout: -1 is not a number of seconds"),
        ("udp://no-such-host.invalid:9", {"auth": "off", "timeout": 1}, BadAddressError, "no-such-host.invalid"),
        ("http://127.0.0.1", {}, BadAddressError, "wanted is udp://host:port"),
    ],
)
def test_what_is_wrong_is_named(url, options, error, complaint):
    with pytest.raises(error, match=complaint):
        netreplay.connect(url, **options)


def test_a_dead_server_is_named_with_how_long_it_was_silent():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begin = time.monotonic()
    with pytest.raises(
        netreplay.Timeout,
        match=rf"127\.0\.0\.1:{port} for \d\.\d s \(connection refused\): is `netreplay serve` running there\?",
    ):
        netreplay.connect(f"udp://127.0.0.1:{port}", auth="off", timeout=0.5)
    assert time.monotonic() - begin < 5


def test_a_mute_server_is_named_too():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", 0))
        port = mute.getsockname()[1]
        with pytest.raises(netreplay.Timeout, match=rf"no answer from 127\.0\.0\.1:{port} for 0\.[3-9] s$"):
            netreplay.connect(f"udp://127.0.0.1:{port}", auth="off", timeout=0.3)


def test_a_server_that_dies_is_named_with_its_silence(start_server):
    server = start_server(simple())
    with netreplay.connect(server.url, auth="off", timeout=0.5) as replay:
        replay.ping()
        server.kill()
        with pytest.raises(netreplay.Timeout, match=r"ping: no answer from 127\.0\.0\.1:\d+ for \d\.\d s"):
            replay.ping()


def test_a_spec_is_compared_over_the_wire(start_server):
    server = start_server(simple())
    with netreplay.connect(server.url, auth="off", spec=SPEC) as replay:
        assert replay.spec.tables["t"].capacity == 1000
    other = netreplay.Spec.from_toml(simple(capacity=1001))
    with pytest.raises(
        SpecError, match=r"differs from that of .*: tables\.t\.capacity: 1001 and 1000|stores\.s\.steps"
    ):
        netreplay.connect(server.url, auth="off", spec=other)
