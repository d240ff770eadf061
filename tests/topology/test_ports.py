"""The appliance on DPDK ports, kernel clients on another host: what the behaviour suite does not reach."""

from __future__ import annotations

import socket
import struct
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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


def ping(host: str) -> None:
    """An echo request, and the answer to it."""
    body = bytes(range(56))
    if ":" in host:
        request = bytearray(struct.pack("!BBHHH", 128, 0, 0, 7, 1) + body)  # the kernel reckons the checksum
    else:
        request = bytearray(struct.pack("!BBHHH", 8, 0, 0, 7, 1) + body)
        total = sum(struct.unpack(f"!{len(request) // 2}H", request))
        total = (total >> 16) + (total & 0xFFFF)
        request[2:4] = struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF)
    family, protocol, header, kind = (
        (socket.AF_INET6, socket.IPPROTO_ICMPV6, 0, 129)
        if ":" in host
        else (socket.AF_INET, socket.IPPROTO_ICMP, 20, 0)
    )
    with socket.socket(family, socket.SOCK_RAW, protocol) as raw:
        raw.settimeout(PATIENCE)
        raw.connect((host, 0))
        raw.send(request)
        answer = raw.recv(2048)[header:]
        while answer[0] != kind:  # neighbour discovery between the two
            answer = raw.recv(2048)[header:]
    assert answer[4:] == request[4:]


def hosts_of(server: ServerProcess) -> list[str]:
    """The addresses that a server is reached at."""
    return [url.partition("//")[2].rpartition(":")[0].strip("[]") for url in server.urls]


@pytest.mark.parametrize("driver", ["net_af_packet", "net_af_xdp"])
def test_the_port_answers_ping(start, driver):
    for host in hosts_of(start(driver, simple())):
        ping(host)


def echoes(wire: Network) -> int:
    """Pings that the server host's kernel has taken, of both families."""
    lines = [line.split() for line in wire.server.do("cat", "/proc/net/snmp").splitlines() if line.startswith("Icmp:")]
    six = dict(line.split() for line in wire.server.do("cat", "/proc/net/snmp6").splitlines())
    return int(dict(zip(*lines, strict=True))["InEchos"]) + int(six["Icmp6InEchos"])


def talk(wire: Network, family: socket.AddressFamily) -> None:
    """A TCP connection to the server host's kernel, as ssh would make one, and a megabyte each way."""
    sent, host = np.random.default_rng(1).bytes(1 << 20), wire.server.ipv4
    if family == socket.AF_INET6:
        host = wire.server.ipv6
    with wire.server.inside():
        listener = socket.create_server((host, 0), family=family)

    def answer() -> None:
        peer, _ = listener.accept()
        with peer:
            data = b"".join(iter(lambda: peer.recv(1 << 16), b""))
            peer.sendall(data)

    with listener, ThreadPoolExecutor(1) as pool:
        answered = pool.submit(answer)
        with socket.create_connection((host, listener.getsockname()[1]), timeout=PATIENCE) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            assert b"".join(iter(lambda: client.recv(1 << 16), b"")) == sent
        answered.result(PATIENCE)


@pytest.mark.parametrize("kernels", [False, True], ids=["own address", "the kernel's address"])
def test_af_xdp_leaves_to_the_kernel_what_is_not_for_the_port(start, wire, kernels):
    server = start("net_af_xdp", kernels=kernels)
    assert "xdp" in wire.server.do("ip", "link", "show", "eth0")
    for host in (
        wire.server,
        wire.client,
    ):  # so that whoever is asked for the MAC answers, and nothing was known before
        host.do("ip", "neighbour", "flush", "dev", "eth0")
    before = echoes(wire)
    ping(wire.server.ipv4)
    ping(wire.server.ipv6)
    assert echoes(wire) == before + 2
    with ThreadPoolExecutor(2) as pool:  # threads start on the thread's host
        talks = [pool.submit(talk, wire, family) for family in (socket.AF_INET, socket.AF_INET6)]
        for url in server.urls:
            exchange(url)
        for done in talks:
            done.result(PATIENCE)
    for host in hosts_of(server):
        ping(host)
    assert echoes(wire) == before + (4 if kernels else 2)
    server.process.terminate()
    assert server.wait() == 0
    assert "xdp" not in wire.server.do("ip", "link", "show", "eth0")


def test_af_xdp_without_filter_takes_every_frame(start, wire):
    server = start("net_af_xdp", simple(), filter_=False)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):  # with the filter the kernel refuses at once
            client.connect((wire.server.ipv4, 9))
    with netreplay.connect(server.url, auth="off", timeout=PATIENCE) as replay:
        replay.ping()


def test_the_kernel_gets_everything_while_the_server_is_dead(start, wire):
    server = start("net_af_xdp", simple(), kernels=True)
    server.kill()
    assert "xdp" in wire.server.do("ip", "link", "show", "eth0")
    with wire.server.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.settimeout(PATIENCE)
        other.bind((wire.server.ipv4, netreplay.address.DEFAULT_PORT))
        with wire.client.inside(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"for the port", other.getsockname())
        assert other.recv(100) == b"for the port"
    server.restart()
    with netreplay.connect(server.url, auth="off", timeout=PATIENCE) as replay:
        replay.ping()


def refusal(start: Start, **port: object) -> str:
    """The line with which a server on net_af_xdp ends."""
    with pytest.raises(AssertionError, match="the server ended") as caught:
        start("net_af_xdp", simple(), **port)
    (line,) = [line for line in str(caught.value).splitlines() if "netreplay: " in line]
    assert "Traceback" not in str(caught.value)
    return line


def test_a_program_that_cannot_be_had_is_named_in_one_line(start, wire, tmp_path):
    assert "xdp_prog: /nope: No such file" in refusal(start, arguments="xdp_prog=/nope")
    bad = tmp_path / "bad.o"
    bad.write_bytes(b"no object")
    assert "is no BPF object file with a map named xsks_map" in refusal(start, arguments=f"xdp_prog={bad}")
    bad.write_bytes(b"\x7fELF xsks_map\0")
    assert f"the kernel refuses the program {bad}" in refusal(start, arguments=f"xdp_prog={bad}")
    assert "xdp" not in wire.server.do("ip", "link", "show", "eth0")


def test_a_second_server_of_the_interface_is_refused_and_the_first_goes_on(start):
    server = start("net_af_xdp", simple())
    assert "another server receives from eth0" in refusal(start)
    assert "another server receives from eth0" in refusal(start, filter_=False)
    with netreplay.connect(server.url, auth="off", timeout=PATIENCE) as replay:
        replay.ping()


def test_the_program_of_another_is_left_where_it_is(start, wire):
    server = start("net_af_xdp", simple(), filter_=False)  # libxdp's program: a killed server leaves it
    server.kill()
    try:
        assert "ip link set eth0 xdp off" in refusal(start)
    finally:
        wire.server.link("xdp", "off")


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
