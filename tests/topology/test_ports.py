"""The appliance on DPDK ports, kernel clients on another host: what the behaviour suite does not reach."""

from __future__ import annotations

import socket
import struct
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from feeding import feed
from serving import PATIENCE, ServerProcess, wait_until
from specs import simple
from topology.hosts import Network

import netreplay
from netreplay import DataLossWarning

pytestmark = pytest.mark.root

FRAME = 20_000
"""bytes that no datagram holds"""

Start = Callable[..., ServerProcess]


@pytest.fixture
def start(wire: Network, tmp_path: Path, resources: ExitStack) -> Start:
    """start(driver) -> a server on the server host's port; this thread is then on the client host."""
    resources.enter_context(wire.on_client())

    def start_(driver: str, toml: str = "", **port: object) -> ServerProcess:
        toml = toml or simple(observation=f'{{dtype = "uint8", shape = [{FRAME}]}}', capacity=2000)
        part = wire.port(driver, **port)
        folder = tmp_path / f"server{time.monotonic_ns()}"
        return resources.enter_context(ServerProcess(toml, folder, port=part, namespace=wire.server.namespace))

    return start_


def frame(number: int) -> np.ndarray:
    return np.frombuffer(np.random.default_rng(number).bytes(FRAME), np.uint8)


def exchange(url: str, count: int = 40) -> None:
    """Inserts frames and draws them again, byte by byte."""
    with netreplay.connect(url, auth="off", timeout=PATIENCE) as replay:
        with replay.actor("s") as actor:
            for i in range(count):
                actor.append(obs=frame(i), action=i, reward=0.0, terminated=False, truncated=i == count - 1)
            actor.end(obs=frame(count))
            assert len(actor.flush()) == count
        with replay.learner("t", batch_size=64, timeout=PATIENCE) as learner:
            batch = learner.sample()
            for row in range(64):
                number = int(batch["action"][row])
                assert np.array_equal(batch["obs"][row], frame(number))
                assert np.array_equal(batch["next_obs"][row], frame(number + 1))
            assert learner.update_priorities(batch.keys, np.ones(64)).stale == 0


@pytest.mark.parametrize("driver", ["net_af_packet", "net_af_xdp"])
@pytest.mark.parametrize("family", [4, 6])
def test_large_steps_go_both_ways_whole(start, driver, family):
    exchange(start(driver).urls[0 if family == 4 else 1])


@pytest.mark.parametrize("driver", ["net_af_packet", "net_af_xdp"])
def test_a_server_that_was_killed_starts_again_on_its_port(start, driver):
    server = start(driver, simple(capacity=500))
    with netreplay.connect(server.url, auth="off", timeout=PATIENCE) as replay, replay.actor("s") as actor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataLossWarning)
            for i in range(3):
                feed(actor, 20, first=20 * i)
                server.kill()
                server.restart()
            assert len(feed(actor, 20, first=60)) == 20
        assert replay.table("t").info().size == 20
        assert sum(loss.items for loss in replay.losses()) == 60


def test_jumbo_frames_carry_large_datagrams(start, wire):
    for host in (wire.server, wire.client):
        host.link("mtu", "9000")
    try:
        wire.settle()
        server = start("net_af_packet", mtu=9000, arguments="framesz=16384,blocksz=16384")
        exchange(server.url)
        with netreplay.connect(server.url, auth="off", timeout=PATIENCE) as replay:
            replay.ping()
            assert replay.counters().max_datagram > 8900
    finally:
        wire.restore()


def test_the_port_answers_ping(start):
    server = start("net_af_packet", simple())
    host = server.url.partition("//")[2].partition(":")[0]
    body = bytes(range(56))
    request = bytearray(struct.pack("!BBHHH", 8, 0, 0, 7, 1) + body)
    total = sum(struct.unpack(f"!{len(request) // 2}H", request))
    total = (total >> 16) + (total & 0xFFFF)
    request[2:4] = struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF)
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.settimeout(PATIENCE)
        raw.sendto(request, (host, 0))
        answer = raw.recv(2048)[20:]
    assert answer[0] == 0
    assert answer[4:] == request[4:]


def test_what_is_not_for_the_port_stays_with_the_host(start, wire):
    """The kernel of the server host goes on serving its own addresses beside a port on the same interface."""
    server = start("net_af_packet", simple())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(PATIENCE)
        client.connect((wire.server.ipv4, 9))
        client.send(b"x")
        with pytest.raises(ConnectionRefusedError):  # answered by that kernel: nobody listens there
            client.recv(10)
    with netreplay.connect(server.url, auth="off", timeout=PATIENCE) as replay:
        replay.ping()
    wait_until(lambda: server.process.is_alive(), "the server lives")
