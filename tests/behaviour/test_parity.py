"""Parity: one seed and one synchronous script give the same bits over every transport, and through a bad wire."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import pytest
from conftest import Serve
from serving import wait_until

import netreplay

SEED = 20_261_201
BAD = {"--loss": "0.01", "--duplicate": "0.01", "--reorder": "0.01", "--seed": "4"}

# The tables are small, so that most items leave again: keys are those of slots used many times.
SPEC = """
[store.s]
observation.obs = {dtype = "float32", shape = [4]}
action.action = {dtype = "int64"}
[table.learned]
store = "s"
capacity = 300
sampler = "prioritized"
exponent = 0.6
min_size = 1
window = {n = 3, gamma = 0.9, stack = 2}
[table.plain]
store = "s"
capacity = 200
sampler = "uniform"
remover = "uniform"
min_size = 1
window = {n = 1}
[table.parts]
store = "s"
capacity = 250
sampler = "stratified"
remover = "lowest_priority"
min_size = 1
window = {n = 1}
"""
ITERATIONS, STEPS, ROWS = 40, 25, 32


class Run(NamedTuple):
    """What a run of the script gave."""

    trace: list[tuple[str, bytes]]
    """everything that was seen, in order: a name and its bytes"""
    weights: np.ndarray
    """of the network in the end"""
    counters: Any


class Network:
    """Two layers, trained by gradient descent on the squared TD error. All arrays are its own, so that their places in
    memory, which may decide the order of a sum, do not depend on the transport."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.first = rng.normal(size=(8, 16)) * 0.3
        self.second = rng.normal(size=(16, 2)) * 0.3

    def values(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hidden = np.tanh(obs @ self.first)
        return hidden, hidden @ self.second

    def train(self, batch: netreplay.Batch) -> np.ndarray:
        """One step; the TD errors' absolute values."""
        rows = np.arange(len(batch["reward"]))
        obs, after = (np.array(batch[f], np.float64).reshape(len(rows), 8) for f in ("obs", "next_obs"))
        hidden, values = self.values(obs)
        target = batch["reward"] + batch["discount"] * self.values(after)[1].max(axis=1)
        error = target - values[rows, batch["action"]]
        slope = np.zeros_like(values)
        slope[rows, batch["action"]] = error * batch.weights(0.4) / len(rows)
        back = (slope @ self.second.T) * (1 - hidden**2)
        self.second += 0.1 * hidden.T @ slope
        self.first += 0.1 * obs.T @ back
        return np.abs(error)

    def flat(self) -> np.ndarray:
        return np.concatenate([self.first.ravel(), self.second.ravel()])


def observe(trace: list[tuple[str, bytes]], batch: netreplay.Batch) -> None:
    """Every bit of a batch."""
    trace.extend((field, np.ascontiguousarray(batch[field]).tobytes()) for field in batch.fields)
    trace.append(("keys", batch.keys.tobytes()))
    trace.append(("probabilities", batch.probabilities.tobytes()))
    trace.append(("weights", batch.weights(0.4).tobytes()))
    trace.append(("weights by table", batch.weights(0.7, normalize="table").tobytes()))


def settled(replay: netreplay.Replay) -> None:
    """Until no draw holds an item: which slot an item gets depends on those that draws still hold (semantics 10)."""
    wait_until(lambda: all(t.leased == 0 == t.reserved for t in replay.tables().values()), "the draws are settled")


def script(replay: netreplay.Replay, seed: int = 1) -> Run:
    """Acts, waits, samples, trains, updates; all in order."""
    rng = np.random.default_rng(seed)
    network, trace = Network(rng), []
    before = obs = rng.normal(size=4).astype(np.float32)
    with ExitStack() as stack:
        actor = stack.enter_context(replay.actor("s"))
        learners = {t: stack.enter_context(replay.learner(t, batch_size=ROWS)) for t in ("learned", "plain", "parts")}
        for iteration in range(ITERATIONS):
            for _ in range(STEPS):
                value = network.values(np.concatenate([before, obs])[None])[1][0]
                action = int(rng.integers(2)) if rng.random() < 0.3 else int(value.argmax())
                over = rng.choice(["", "", "", "", "", "", "terminated", "truncated"])
                given = float(rng.exponential()) if rng.random() < 0.5 else None
                actor.append(
                    obs=obs,
                    action=action,
                    reward=float(obs.sum()),
                    terminated=over == "terminated",
                    truncated=over == "truncated",
                    priority=given,
                )
                before, obs = obs, (0.9 * obs + 0.1 * rng.normal(size=4)).astype(np.float32)
                if over:
                    actor.end(obs=obs, priority=None if given is None else 2 * given)
                    before = obs = rng.normal(size=4).astype(np.float32)
            trace.append(("inserted", actor.flush().tobytes()))
            for name, learner in learners.items():
                batch = learner.sample(timeout=30)
                observe(trace, batch)
                if name == "learned":
                    errors = network.train(batch)
                else:
                    errors = rng.exponential(size=ROWS)
                result = learner.update_priorities(batch.keys, errors)
                trace.append(("updated", np.asarray(result.outcome).tobytes()))
                if name == "plain" and iteration % 5 == 4:
                    replay.table(name).delete(batch.keys[:3])
            settled(replay)
    return Run(trace, network.flat(), replay.counters())


def local(seed: int = SEED) -> Run:
    with netreplay.connect("local:", spec=netreplay.Spec.from_toml(SPEC), seed=seed) as replay:
        return script(replay)


@pytest.fixture(scope="module")
def reference() -> Run:
    return local()


@pytest.fixture
def forward(resources: ExitStack) -> Callable[[str], str]:
    """forward(url) -> the address of the project's own bad network in front of it, ended with the test."""

    def start(url: str) -> str:
        options = [word for pair in BAD.items() for word in pair]
        process = subprocess.Popen(
            [sys.executable, "-m", "netreplay.cli", "forward", url, *options], stdout=subprocess.PIPE, text=True
        )

        def end() -> None:
            process.terminate()
            said, _ = process.communicate(timeout=20)
            print(said)
            assert " 0 lost" not in said  # it was bad, both ways

        resources.callback(end)
        assert process.stdout is not None
        return process.stdout.readline().split()[2]

    return start


def compare(run: Run, reference: Run) -> None:
    for i, (mine, theirs) in enumerate(zip(run.trace, reference.trace, strict=True)):
        assert mine == theirs, f"entry {i} of {len(run.trace)}, {mine[0]}"
    assert run.weights.tobytes() == reference.weights.tobytes()


def test_the_script_is_worth_comparing(reference: Run) -> None:
    """It learns something, evicts, and draws different rows; another seed gives other batches and weights."""
    assert np.isfinite(reference.weights).all()
    assert not np.array_equal(reference.weights, Network(np.random.default_rng(1)).flat())
    drawn = [bytes_ for name, bytes_ in reference.trace if name == "keys"]
    assert len(set(drawn)) == len(drawn) == 3 * ITERATIONS
    other = local(SEED + 1)
    assert not np.array_equal(other.weights, reference.weights)
    assert {name for (name, mine), (_, theirs) in zip(other.trace, reference.trace, strict=True) if mine != theirs} >= {
        "keys",
        "inserted",
        "obs",
        "probabilities",
        "weights",
    }


@pytest.mark.parametrize("way", ["local", "vhost", "udp", "bad udp"])
def test_one_seed_gives_the_same_bits(
    way: str, reference: Run, serve: Serve, resources: ExitStack, forward: Callable[[str], str]
) -> None:
    if way == "local":
        compare(local(), reference)
        return
    server = serve(f"{SPEC}\n[server]\nseed = {SEED}\n", "vhost" if way == "vhost" else "udp")
    url = forward(server.url) if way == "bad udp" else server.url
    replay = resources.enter_context(netreplay.connect(url, auth="off" if way != "vhost" else None, timeout=30))
    run = script(replay)
    compare(run, reference)
    assert run.counters.reconnects == 0
    assert way != "bad udp" or run.counters.retransmissions > 0


def test_a_seed_for_a_server_is_refused(serve: Serve) -> None:
    url = serve(SPEC, "udp").url
    with pytest.raises(netreplay.BadConfigError, match=r"seed: 3 .* under \[server\]"):
        netreplay.connect(url, auth="off", seed=3)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True, "1"])
def test_what_is_no_seed_is_refused(seed: Any) -> None:
    with pytest.raises(netreplay.errors.BadCountError, match=r"seed: .* is not a whole number between 0 and 9223372"):
        netreplay.connect("local:", spec=netreplay.Spec.from_toml(SPEC), seed=seed)
