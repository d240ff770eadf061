"""connect(): what is refused, and with which way out."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from feeding import feed
from specs import simple

import netreplay
from netreplay.errors import (
    BadAddressError,
    BadConfigError,
    BadCountError,
    NotYetError,
    RefusedError,
    SpecError,
    TooManyError,
)

SPEC = netreplay.Spec.from_toml(simple())


def test_local_reads_a_file(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(simple() + '[server]\nauth = "off"\n')
    with netreplay.connect(f"local:{path}") as replay:
        assert list(replay.tables()) == ["t"]


def test_a_seed_makes_the_draws_of_local_those_of_every_run():
    def drawn(seed):
        with netreplay.connect("local:", spec=SPEC, seed=seed) as replay, replay.actor("s") as actor:
            feed(actor, 50)
            with replay.learner("t", batch_size=32) as learner:
                return [learner.sample()["action"].tolist() for _ in range(3)]

    assert drawn(7) == drawn(7) != drawn(8)


@pytest.mark.parametrize(
    ("url", "options", "error", "complaint"),
    [
        ("local:", {}, BadAddressError, "names no TOML file"),
        ("local:nowhere.toml", {}, SpecError, r"nowhere\.toml: cannot be read"),
        ("local:a.toml", {"spec": SPEC}, BadAddressError, "one of them is wanted"),
        ("local:", {"spec": simple()}, SpecError, "str is not a Spec"),
        ("local:", {"spec": SPEC, "seed": -1}, BadCountError, "seed: -1 is not a whole number"),
        ("vhost:///tmp/x", {"seed": 1}, BadConfigError, "seed: 1 is given for vhost"),
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
        ("vhost://relative.sock", {}, BadAddressError, "a socket's absolute path"),
        ("vhost:///" + "x" * 200, {}, BadAddressError, "the path has 201 bytes, and a Unix socket's can have 107"),
        ("http://127.0.0.1", {}, BadAddressError, "wanted is udp://host:port, vhost:///path"),
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


def test_a_socket_that_is_not_there_is_named(tmp_path):
    with pytest.raises(
        netreplay.Timeout,
        match=r"no answer from /nowhere/a\.sock for \d\.\d s \(no such socket\): is `netreplay serve`",
    ):
        netreplay.connect("vhost:///nowhere/a.sock", timeout=0.3)


@pytest.mark.parametrize("network", ["vhost"], indirect=True)
def test_a_vhost_client_too_many_is_refused_at_once_and_one_that_leaves_makes_room(start_server):
    server = start_server("[server]\nvhost_clients = 2\n" + simple())
    first = netreplay.connect(server.url)
    with netreplay.connect(server.url), pytest.raises(TooManyError, match=r"raise server\.vhost_clients") as caught:
        netreplay.connect(server.url, timeout=60)
    assert caught.value.field == "server.vhost_clients"
    first.close()
    with netreplay.connect(server.url) as replay, netreplay.connect(server.url):
        replay.ping()


@pytest.mark.parametrize("network", ["vhost"], indirect=True)
def test_a_vhost_socket_is_for_its_owner_and_group(start_server):
    server = start_server(simple())
    assert Path(server.url.removeprefix("vhost://")).stat().st_mode & 0o777 == 0o660


@pytest.mark.parametrize("network", ["vhost"], indirect=True)
def test_two_servers_never_share_a_socket(start_server):
    server = start_server(simple())
    with pytest.raises(AssertionError, match=r"cannot listen: Address already in use; a server answers at this socket"):
        start_server(simple(), listen=server.url)
    with netreplay.connect(server.url) as replay:
        replay.ping()


@pytest.mark.parametrize("network", ["vhost"], indirect=True)
def test_one_server_answers_at_several_addresses(serve, start_server):
    here = start_server(simple()).url + "2"
    server = serve(simple(), "both", listen=[here, "udp://127.0.0.1:0"])
    assert len(server.urls) == 2
    with netreplay.connect(server.urls[0], auth="off") as one, netreplay.connect(server.urls[1], auth="off") as other:
        with one.actor("s") as actor:
            feed(actor, 5)
        assert other.table("t").info().size == 5


def test_a_server_that_dies_is_named_with_its_silence(start_server):
    server = start_server(simple())
    with netreplay.connect(server.url, auth="off", timeout=0.5) as replay:
        replay.ping()
        server.kill()
        with pytest.raises(
            netreplay.Timeout, match=rf"ping: no answer from {server.url.partition('://')[2]} for \d\.\d s"
        ):
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
