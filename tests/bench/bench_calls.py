"""What the blocking calls cost in Python with CartPole-size transitions and 10^5 items, beside an echo of their bytes.

Over vhost the floor is a C echo over the same path, of as many bytes in as many datagrams, both sides spinning; for
update it is the same call on local:. Over udp it is a UDP echo between Python processes, and nothing spins.
"""

from __future__ import annotations

import os
import statistics
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from floor import cores, echo, microseconds
from placed import SAME_STATE, TOML, Echo, PlacedServer, Subject, by_state, line_ns, p50_us, pinned, two_cores
from serving import ServerProcess

import netreplay

ROUNDS = 2000
TARGET = 2.5
BLOCKS, BLOCK_ROUNDS = 15, 200
ABOVE = {"ping": 6.0, "insert": 6.0, "sample": 12.0, "update": 6.0}
"""microseconds above the floor, over vhost"""


@pytest.fixture(scope="module", params=["udp", "local"])
def subject(request, tmp_path_factory):
    with ExitStack() as stack:
        if request.param == "udp":
            server = stack.enter_context(ServerProcess(TOML, tmp_path_factory.mktemp("server")))
            if cores()[1] >= 0:
                for thread in Path(f"/proc/{server.process.pid}/task").iterdir():
                    os.sched_setaffinity(int(thread.name), {cores()[1]})
            replay = netreplay.connect(server.url, auth="off")
        else:
            replay = netreplay.connect("local:", spec=netreplay.Spec.from_toml(TOML))
        before = os.sched_getaffinity(0)
        if cores()[0] >= 0:
            os.sched_setaffinity(0, {cores()[0]})
        stack.callback(os.sched_setaffinity, 0, before)
        made = Subject(replay)
        stack.callback(made.close)
        made.kind = request.param
        yield made


@pytest.mark.parametrize("call", ["insert", "sample", "update"])
def test_blocking_calls(benchmark, subject, call, capsys):
    benchmark.group = f"{call} ({'1' if call == 'insert' else '32' if call == 'sample' else '512'})"
    if subject.kind == "local":
        measure(benchmark, subject, call)
        with capsys.disabled():
            print(f"\nlocal: {call}: median {benchmark.stats.stats.median * 1e6:.1f} us")
        return
    (sent, sends), (received, receives) = ((int(n) for n in text.split("x")) for text in subject.exchanged(call))
    sent, received = sent * sends, received * receives
    with echo(sent, received) as exchange:
        before = microseconds(exchange, ROUNDS // 2)
        measure(benchmark, subject, call)
        floor = statistics.median(before + microseconds(exchange, ROUNDS // 2))
    median = benchmark.stats.stats.median * 1e6
    verdict = "met" if median <= TARGET * floor else "MISSED"
    benchmark.extra_info.update(floor_us=floor, ratio=median / floor, bytes_sent=sent, bytes_received=received)
    with capsys.disabled():
        print(
            f"\nudp: {call}: median {median:.1f} us, UDP echo of {sent} + {received} B {floor:.1f} us, "
            f"ratio {median / floor:.2f} (<= {TARGET}): {verdict}"
        )


def measure(benchmark, subject: Subject, call: str) -> None:
    subject.prepare(call, ROUNDS + 200)
    benchmark.pedantic(getattr(subject, call), rounds=ROUNDS, warmup_rounds=200, iterations=1)


def test_an_append_that_does_not_wait(benchmark, subject, capsys):
    """The cost to an environment's step: one append, the sending left to the client."""
    benchmark.group = "append"
    benchmark.pedantic(subject.append, rounds=ROUNDS, warmup_rounds=200, iterations=1)
    subject.actor.flush(60)
    with capsys.disabled():
        print(f"\n{subject.kind}: append without flush: median {benchmark.stats.stats.median * 1e6:.1f} us")


# ---- Over vhost, in blocks with the floor ----


@pytest.fixture(scope="module")
def vhost():
    """(subject, its server, the echo), both stopped; and a local: subject."""
    two_cores()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="netreplay-")))
        floor = Echo(folder, "vhost")
        stack.callback(floor.close)
        floor.halt()
        server = PlacedServer(TOML, folder / "server", "vhost")
        stack.callback(server.close)
        stack.enter_context(pinned())
        made = Subject(server.connect())
        stack.callback(made.close)
        stack.callback(server.go_on)
        server.halt()
        local = Subject(netreplay.connect("local:", spec=netreplay.Spec.from_toml(TOML)))
        stack.callback(local.close)
        yield made, server, floor, local


@pytest.mark.parametrize("call", ABOVE)
def test_blocking_calls_over_vhost(vhost, call):
    subject, server, floor, local = vhost
    server.go_on()
    request, response = subject.exchanged(call)
    server.halt()
    lines, calls, floors = [], [], []
    for _ in range(BLOCKS):
        before = line_ns()
        if call == "update":
            local.prepare(call, BLOCK_ROUNDS + 30)
            below = p50_us(local.update, BLOCK_ROUNDS)
        else:
            floor.go_on()
            below = floor.ask(request, response, BLOCK_ROUNDS)
            floor.halt()
        server.go_on()
        subject.prepare(call, BLOCK_ROUNDS + 30)
        above = p50_us(getattr(subject, call), BLOCK_ROUNDS)
        subject.replay.tables()
        server.halt()
        after = line_ns()
        if max(before, after) <= SAME_STATE * min(before, after):
            lines.append((before + after) / 2)
            calls.append(above)
            floors.append(below)
    assert lines, "no block began and ended in the same state of the machine"
    above = [a - b for a, b in zip(calls, floors, strict=True)]
    verdict = "met" if statistics.median(above) <= ABOVE[call] else "MISSED"
    name = "the same on local:" if call == "update" else f"C echo of {request} + {response} B"
    print(
        f"\nvhost: {call}: {statistics.median(calls):.2f} us, {name} {statistics.median(floors):.2f} us: "
        f"{statistics.median(above):.2f} us above (<= {ABOVE[call]}): {verdict}; {by_state(lines, above, '.2f')}"
    )
