"""The sum tree against a few lines of Python: random inserts and updates over `local:`, then draws. Semantics 4."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import simple

import netreplay

DRAWS = 256

# The weights of these are so many units of 2^-24 that rounding to them is far below 10^-6, and 100 fit 64 bits.
PLAIN = st.one_of(st.just(0.0), st.sampled_from([1.0, 10.0, 1e9]), st.floats(1.0, 1e9))
# Of these some are few units, some are raised to the least unit, some are cut to the largest leaf.
ANY = st.one_of(PLAIN, st.sampled_from([5e-324, 1e-300, 1e-9, 1e30, 1.7e308]), st.floats(0.0, 1.7e308))


def operations(raw):
    """Batches of operations: inserted raw priorities, then updates of (an item's number from the newest, raw)."""
    inserts = st.lists(raw, max_size=12)
    updates = st.lists(st.tuples(st.integers(0, 120), raw), max_size=12)
    repeated = st.lists(st.tuples(st.integers(0, 3), raw), max_size=8)
    return st.lists(st.tuples(inserts, st.one_of(updates, repeated)), min_size=1, max_size=4)


class Reference:
    """The raw priorities of the items present, by key, oldest first."""

    def __init__(self, capacity, exponent, units):
        self.capacity, self.exponent, self.units = capacity, exponent, units
        self.raw = {}

    def insert(self, key, raw):
        self.raw[key] = raw
        if len(self.raw) > self.capacity:
            del self.raw[next(iter(self.raw))]

    def update(self, key, raw):
        if key in self.raw:
            self.raw[key] = raw

    def weight(self, raw):
        """raw ** exponent, 0 of 0; with `units` in whole units, at least one and at most (2^64 - 1) / capacity."""
        weight = raw**self.exponent if raw > 0 else 0.0
        if not self.units or weight == 0:
            return weight
        return max(round(min(weight * 2.0**24, float((2**64 - 1) // self.capacity))), 1)

    def probabilities(self):
        weights = {key: self.weight(raw) for key, raw in self.raw.items()}
        total = sum(weights.values())
        return {key: weight / total for key, weight in weights.items() if weight > 0}

    def max_priority(self):
        return max(self.raw.values(), default=0.0)


class Memory:
    """A table in this process, and the reference that is told the same."""

    def __init__(self, replay, reference):
        self.table = replay.table("t")
        self.actor = replay.actor("s")
        self.learner = replay.learner("t", batch_size=DRAWS)
        self.reference = reference
        self.keys = []

    def close(self):
        self.learner.close()
        self.actor.close()

    def insert(self, raws):
        row = {"action": 0, "reward": 0.0, "terminated": True, "truncated": False}
        for raw in raws:
            self.actor.append(obs=np.zeros(4), **row)
            self.actor.end(obs=np.zeros(4), priority=raw)
        keys = self.actor.flush().tolist()
        for key, raw in zip(keys, raws, strict=True):
            self.reference.insert(key, raw)
        self.keys += keys

    def update(self, changes):
        if not self.keys:
            return
        keys = [self.keys[-1 - back % len(self.keys)] for back, _ in changes]
        present = set(keys) & set(self.reference.raw)
        result = self.learner.update_priorities(keys, [raw for _, raw in changes])
        assert (result.applied, result.superseded) == (len(present), len(keys) - len(set(keys)))
        for key, (_, raw) in zip(keys, changes, strict=True):
            self.reference.update(key, raw)

    def check(self):
        """What is drawn has the reference's probability, and nothing without one is drawn."""
        expected = self.reference.probabilities()
        info = self.table.info()
        assert info.size == len(self.reference.raw)
        assert info.max_priority == self.reference.max_priority()
        if not expected:
            with pytest.raises(netreplay.Timeout):
                self.learner.sample(timeout=0)
            return
        batch = self.learner.sample(timeout=10)
        drawn = dict(zip(batch.keys.tolist(), batch.probabilities.tolist(), strict=True))
        assert set(drawn) <= set(expected)
        for key, probability in drawn.items():
            assert probability == pytest.approx(expected[key], rel=1e-6)


@pytest.mark.parametrize("raw", ["plain", "any"])
@pytest.mark.parametrize("exponent", [0.0, 0.5, 0.6, 1.0])
@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 7, 8, 9, 64, 100])
@given(data=st.data())
@settings(max_examples=8, deadline=None, database=None)
def test_probabilities_are_those_of_a_plain_sum_whatever_was_inserted_and_updated(capacity, exponent, raw, data):
    batches = data.draw(operations(PLAIN if raw == "plain" else ANY))
    spec = netreplay.Spec.from_toml(simple(capacity=capacity, exponent=exponent))
    with netreplay.connect("local:", spec=spec) as replay:
        memory = Memory(replay, Reference(capacity, exponent, units=raw == "any"))
        with contextlib.closing(memory):
            if capacity > 9 and data.draw(st.booleans()):  # nearly full, so that items leave
                memory.insert([1.0 + number % 7 for number in range(capacity - 3)])
            for inserted, updated in batches:
                memory.insert(inserted)
                memory.update(updated)
                memory.check()
