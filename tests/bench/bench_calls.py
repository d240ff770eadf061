"""What the three blocking calls cost with CartPole-size transitions and 10^5 items, beside a UDP echo of their bytes.

Each call has fresh values: keys of a batch drawn before, new priorities, new steps.
"""

from __future__ import annotations

import os
import statistics
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from floor import cores, echo, microseconds
from serving import ServerProcess

import netreplay

ITEMS = 100_000
ROUNDS = 2000
TARGET = 2.5
TOML = """
[store.cartpole]
observation.obs = {dtype = "float32", shape = [4]}
action.action = {dtype = "int64"}
[table.cartpole]
store = "cartpole"
capacity = 100_000
exponent = 0.6
window = {n = 1, gamma = 0.99}
"""


class Subject:
    """A filled memory and the calls to measure."""

    def __init__(self, replay: netreplay.Replay) -> None:
        self.replay = replay
        self.rng = np.random.default_rng(1)
        self.actor = replay.actor("cartpole")
        self.learner = replay.learner("cartpole", batch_size=32, timeout=10)
        self.wide = replay.learner("cartpole", batch_size=512, timeout=10)
        self.observations = self.rng.standard_normal((4096, 4)).astype(np.float32)
        self.step = 0
        for _ in range(ITEMS):
            self._append()
        self.actor.flush(60)
        self.updates = []

    def _append(self) -> None:
        self.step += 1
        observation = self.observations[self.step & 4095]
        self.actor.append(obs=observation, action=1, reward=1.0, terminated=False, truncated=False)

    def insert(self) -> None:
        self._append()
        self.actor.flush()

    def sample(self) -> None:
        self.learner.sample()

    def update(self) -> None:
        keys, priorities = self.updates.pop()
        self.learner.update_priorities(keys, priorities)

    def prepare(self, call: str, rounds: int) -> None:
        if call == "update":
            self.updates = [(self.wide.sample().keys, self.rng.uniform(0.01, 3, 512)) for _ in range(rounds)]

    def close(self) -> None:
        for part in (self.actor, self.learner, self.wide, self.replay):
            part.close()


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


def exchanged(subject: Subject, call: str, rounds: int = 64) -> tuple[float, float]:
    """Bytes of one call each way, as counted by the client."""
    subject.prepare(call, rounds)
    before = subject.replay.counters()
    for _ in range(rounds):
        getattr(subject, call)()
    after = subject.replay.counters()
    return (after.bytes_sent - before.bytes_sent) / rounds, (after.bytes_received - before.bytes_received) / rounds


@pytest.mark.parametrize("call", ["insert", "sample", "update"])
def test_blocking_calls(benchmark, subject, call, capsys):
    benchmark.group = f"{call} ({'1' if call == 'insert' else '32' if call == 'sample' else '512'})"
    if subject.kind == "local":
        measure(benchmark, subject, call)
        with capsys.disabled():
            print(f"\nlocal: {call}: median {benchmark.stats.stats.median * 1e6:.1f} us")
        return
    sent, received = exchanged(subject, call)
    with echo(round(sent), round(received)) as exchange:
        before = microseconds(exchange, ROUNDS // 2)
        measure(benchmark, subject, call)
        floor = statistics.median(before + microseconds(exchange, ROUNDS // 2))
    median = benchmark.stats.stats.median * 1e6
    verdict = "met" if median <= TARGET * floor else "MISSED"
    benchmark.extra_info.update(floor_us=floor, ratio=median / floor, bytes_sent=sent, bytes_received=received)
    with capsys.disabled():
        print(
            f"\nudp: {call}: median {median:.1f} us, UDP echo of {sent:.0f} + {received:.0f} B {floor:.1f} us, "
            f"ratio {median / floor:.2f} (<= {TARGET}): {verdict}"
        )


def measure(benchmark, subject: Subject, call: str) -> None:
    subject.prepare(call, ROUNDS + 200)
    benchmark.pedantic(getattr(subject, call), rounds=ROUNDS, warmup_rounds=200, iterations=1)


def test_an_append_that_does_not_wait(benchmark, subject, capsys):
    """The cost to an environment's step: one append, the sending left to the client."""
    benchmark.group = "append"
    benchmark.pedantic(subject._append, rounds=ROUNDS, warmup_rounds=200, iterations=1)
    subject.actor.flush(60)
    with capsys.disabled():
        print(f"\n{subject.kind}: append without flush: median {benchmark.stats.stats.median * 1e6:.1f} us")
