"""End to end between two hosts: a server on one, actors and learners on the other, and a wire that can be bad or gone.

Each host is a network namespace (netns.sh); server and clients are processes of their own on them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from serving import wait_until
from topology.hosts import Network, Program, Server, program

pytestmark = pytest.mark.root

FAMILIES = ["IPv4", "IPv6"]
LARGE = 20_000
"""bytes of a frame that no datagram holds"""
SMALL = 2_000
"""bytes of a frame that takes two datagrams of MTU 1500"""
OUTAGE = 2.0
"""seconds"""
LOST_SHARE = 0.02
DATAGRAM = {("IPv4", 1500): 1472, ("IPv6", 1500): 1448, ("IPv4", 9000): 8968, ("IPv6", 9000): 8952}
"""bytes of UDP payload: the MTU less both headers, in whole eights"""


def spec(frame: int, capacity: int) -> str:
    """One store "s", one table "t" of one-step items."""
    return f"""
[store.s]
observation.obs = {{dtype = "uint8", shape = [{frame}]}}
action.action = {{dtype = "int64"}}
[table.t]
store = "s"
capacity = {capacity}
sampler = "prioritized"
exponent = 1.0
min_size = 1
window = {{n = 1, gamma = 0.99, stack = 1}}
[parameters.default]
max_bytes = "2 MiB"
"""


@pytest.fixture
def network(wire: Network) -> Iterator[Network]:
    """The two hosts, as they were built."""
    yield wire
    wire.restore()


Serve = Callable[..., Server]
Start = Callable[..., Program]


@pytest.fixture
def serve(network: Network, tmp_path: Path, resources: ExitStack) -> Serve:
    """serve(family, frame=, capacity=) -> a server on the server host."""

    def serve_(family: str = "IPv4", *, frame: int = SMALL, capacity: int = 100_000) -> Server:
        folder = tmp_path / f"server{time.monotonic_ns()}"
        return resources.enter_context(Server(network.server, family, spec(frame, capacity), folder))

    return serve_


@pytest.fixture
def start(network: Network, resources: ExitStack) -> Start:
    """start(name, url, ...) -> one of programs.py on the client host."""

    def start_(name: str, url: str, *arguments: object) -> Program:
        started = program(network.client, name, url, *arguments)
        resources.callback(started.end)
        return started

    return start_


def assert_no_answer(ended: dict[str, Any], peer: str, timeout: float, cause: str) -> None:
    """The call gave up at its timeout, and said who was silent, for how long, and what the network said to it."""
    assert ended["error"] == "Timeout"
    said = re.search(rf": no answer from {re.escape(peer)} for (\d+\.\d) s{re.escape(cause)}(: .+)?$", ended["text"])
    assert said, ended["text"]
    assert timeout <= ended["seconds"] < timeout + 1
    assert abs(float(said[1]) - ended["seconds"]) < 0.5


# ---- A good wire ----


@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize("family", FAMILIES)
def test_items_and_parameters_arrive_byte_for_byte_in_datagrams_as_large_as_the_mtu(
    network: Network, serve: Serve, start: Start, family: str, mtu: int
) -> None:
    count = 128
    for host in (network.server, network.client):
        host.link("mtu", str(mtu))
    server = serve(family, frame=LARGE)
    learner = start("learner", server.url)
    learner.hear("connected")
    version = learner.ask("publish")["version"]
    learner.say(f"see {2 * count}")  # waits for the items
    actor = start("actor", server.url, count)
    assert actor.hear("inserted")["counters"]["max_datagram"] == DATAGRAM[family, mtu]
    fetched = actor.ask("fetch")
    assert fetched["version"] == version
    assert fetched["counters"]["reconnects"] == 0

    seen = learner.hear("see")
    assert seen["numbers"] == list(range(2 * count))
    assert seen["versions"] == [0] * count + [version] * count
    assert seen["inserted"] == 2 * count
    assert seen["counters"]["max_datagram"] == DATAGRAM[family, mtu]
    assert network.server.fragments() == network.client.fragments() == 0


@pytest.mark.parametrize(("family", "expected"), [("IPv4", 1472), ("IPv6", 1200)])
def test_a_wire_narrower_than_the_clients_own_link_is_found_out(
    network: Network, serve: Serve, start: Start, family: str, expected: int
) -> None:
    network.client.link("mtu", "9000")
    server = serve(family, frame=LARGE)
    actor = start("actor", server.url, 64)
    assert actor.hear("inserted")["counters"]["max_datagram"] == expected
    learner = start("learner", server.url)
    learner.hear("connected")
    assert learner.ask("see 64")["numbers"] == list(range(64))


# ---- A bad wire ----


def drop_by_chance(network: Network) -> Callable[[], int] | None:
    """Both hosts' kernels lose LOST_SHARE of what comes in; answers how to read how many. None where they cannot."""
    rule = ["-i", "eth0", "-p", "udp", "-m", "statistic", "--mode", "random", "--probability"]
    if not shutil.which("iptables"):
        return None
    for host in (network.server, network.client):
        command = [*host.within, "iptables", "-w", "-A", "INPUT", *rule, str(LOST_SHARE), "-j", "DROP"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        if done.returncode != 0:
            print(f"no statistic match for iptables in this kernel: {done.stderr.strip()}")
            return None

    def dropped() -> int:
        listed = [host.do("iptables", "-w", "-nvxL", "INPUT") for host in (network.server, network.client)]
        return sum(int(line.split()[0]) for text in listed for line in text.splitlines() if "statistic" in line)

    return dropped


def forward_badly(network: Network, server: Server, resources: ExitStack) -> str:
    """The project's own bad network, on the server host: the URL that clients connect to instead."""
    command = [*network.server.within, sys.executable, "-m", "netreplay.cli", "forward", server.url]
    command += ["--listen", f"{network.server.ipv4}:0", "--loss", str(LOST_SHARE), "--seed", "3"]
    forwarder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def end() -> None:
        forwarder.terminate()
        said, _ = forwarder.communicate(timeout=20)
        print(said)  # its counters
        assert " 0 lost" not in said

    resources.callback(end)
    assert forwarder.stdout is not None
    return forwarder.stdout.readline().split()[2]


@pytest.mark.parametrize("by", ["iptables", "forwarder"])
def test_through_loss_everything_is_stored_exactly_once(
    network: Network, serve: Serve, start: Start, resources: ExitStack, by: str
) -> None:
    count = 256
    server = serve(frame=LARGE)
    url = server.url
    dropped = None
    if by == "iptables":
        dropped = drop_by_chance(network)
    if dropped is None:  # also where the kernel cannot lose anything
        url = forward_badly(network, server, resources)
    actor, learner = start("actor", url, count), start("learner", url)
    inserted = actor.hear("inserted")
    learner.hear("connected")
    seen = learner.ask(f"see {count}")
    assert seen["numbers"] == list(range(count))
    assert seen["inserted"] == count
    version = learner.ask("publish")["version"]
    assert actor.ask("fetch")["version"] == version
    assert inserted["counters"]["retransmissions"] > 0
    assert inserted["counters"]["reconnects"] == seen["counters"]["reconnects"] == 0
    if dropped is not None:
        assert dropped() > 0


# ---- No wire ----


@pytest.mark.parametrize(("family", "end"), [("IPv4", "server"), ("IPv6", "client")])
def test_calls_recover_from_a_link_that_was_down_and_nothing_is_lost(
    network: Network, serve: Serve, start: Start, family: str, end: str
) -> None:
    server = serve(family)
    inserting, caller = start("keep_inserting", server.url), start("caller", server.url)
    assert inserting.ask("report")["items"] > 0
    sampling = start("keep_sampling", server.url)
    sampling.ask("report")
    caller.hear("connected")
    host = getattr(network, end)

    host.link("down")
    called = caller.ask(f"ping {OUTAGE}")  # also how the outage is timed
    host.link("up")
    assert_no_answer(called, server.peer, OUTAGE, " (no route to host)" if end == "client" else "")

    assert caller.ask("ping 20")["error"] is None
    before = inserting.ask("report")
    batches = sampling.ask("report")["batches"]
    wait_until(lambda: sampling.ask("report")["batches"] > batches, "batches come again")
    sampling.ask("stop")
    stopped = inserting.ask("stop")
    assert stopped["items"] > before["items"]
    assert stopped["losses"] == []
    assert stopped["counters"]["acknowledged"] == stopped["items"]
    seen = see(start, server, stopped["items"])
    assert seen["numbers"] == list(range(stopped["items"]))
    assert seen["inserted"] == stopped["items"]


def see(start: Start, server: Server, count: int) -> dict[str, Any]:
    """A learner that looks at every item once."""
    learner = start("learner", server.url)
    learner.hear("connected")
    return learner.ask(f"see {count}")


# ---- No server ----


def test_a_killed_servers_clients_find_the_next_one_and_name_what_was_lost(serve: Serve, start: Start) -> None:
    server = serve()
    inserting, publisher, sampling = (start(n, server.url) for n in ("keep_inserting", "learner", "keep_sampling"))
    publisher.hear("connected")
    first_version = publisher.ask("publish")["version"]
    sampling.ask("report")
    acknowledged = inserting.ask("report")["items"]

    server.kill()
    server.start()

    publisher.ask("ping")
    sampling.ask("report")
    sampling.ask("stop")
    inserting.ask("report")
    stopped = inserting.ask("stop")
    (lost,) = stopped["losses"]
    assert lost[0] == 0
    assert lost[1] >= acknowledged
    assert stopped["counters"]["lost"] == lost[1]
    assert any(f"no longer holds {lost[1]} acknowledged items of 1 streams" in text for text in stopped["warnings"])
    seen = see(start, server, stopped["items"] - lost[1])
    assert seen["numbers"] == list(range(lost[1], stopped["items"]))  # what is not named as lost is there

    fetched = start("fetch", server.url).hear("fetch")
    assert fetched["version"] > first_version


def test_a_server_that_dies_under_its_clients_calls_is_named_with_the_seconds(serve: Serve, start: Start) -> None:
    server = serve()
    caller = start("caller", server.url)
    caller.hear("connected")
    caller.say("sample 1.0")  # of an empty table
    server.kill()
    for call in ("sample", "fetch", "update"):
        called = caller.hear(call) if call == "sample" else caller.ask(f"{call} 1.0")
        assert_no_answer(called, server.peer, 1.0, " (connection refused)")


def test_where_no_server_is_a_timeout_names_address_and_seconds(network: Network, start: Start) -> None:
    tries = start("connect", "")
    for host, cause in (
        ("192.0.2.1", " (connection refused)"),
        ("[2001:db8::1]", " (connection refused)"),
        ("192.0.2.99", ""),  # nobody has that address
        ("[2001:db8::99]", ""),
    ):
        assert_no_answer(tries.ask(f"connect udp://{host}:7447"), f"{host}:7447", 0.5, cause)


def test_the_command_line_says_in_one_line_that_no_server_is_there(network: Network) -> None:
    command = [*network.client.within, sys.executable, "-m", "netreplay.cli", "tables", "udp://192.0.2.1:7447"]
    done = subprocess.run([*command, "--timeout", "0.5"], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "netreplay: connect: no answer from 192.0.2.1:7447 for 0.5 s (connection refused): "
        "is `netreplay serve` running there?\n"
    )
