"""Keys and eviction. Cases 10 to 13."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from feeding import feed, see_all
from specs import simple

import netreplay


def test_updates_of_evicted_items_are_stale_and_touch_nothing(open_replay):
    replay = open_replay(simple(capacity=10))
    with replay.actor("s") as actor, replay.learner("t", batch_size=64, timeout=10) as learner:
        feed(actor, 10)
        batch = learner.sample()
        feed(actor, 10)
        distinct = np.unique(batch.keys)
        result = learner.update_priorities(distinct, np.full(len(distinct), 77.0))
        assert (result.applied, result.stale) == (0, len(distinct))
        assert replay.table("t").info().max_priority == 1.0
        assert np.allclose(learner.sample().probabilities, 0.1)


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 7, 8, 9, 1000])
def test_the_newest_survive_the_wrap(open_replay, capacity):
    replay = open_replay(simple(capacity=capacity, sampler="uniform"))
    total = capacity + capacity // 2 + 1 if capacity < 100 else 1500
    with replay.actor("s") as actor, replay.learner("t", batch_size=4 * min(capacity, 256)) as learner:
        keys = feed(actor, total)
        seen = see_all(learner, capacity)
        assert set(seen) == set(keys[-capacity:].tolist())
        for key, fields in seen.items():
            assert fields["action"] == np.flatnonzero(keys == key)[0]
            assert fields["obs"].tolist() == [float(fields["action"])] * 4
    info = replay.table("t").info()
    assert (info.size, info.evicted_capacity, info.evicted_steps) == (capacity, total - capacity, 0)


def test_steps_running_out_evict_too_and_are_counted_apart(open_replay):
    """Each item here holds two steps that no other shares, so 1.125 steps per item do not suffice."""
    replay = open_replay(simple(capacity=1000, store="steps = 600\nstreams = 2\nin_flight = 16"))
    with replay.actor("s") as actor:
        feed(actor, 1000)
    info = replay.table("t").info()
    assert info.evicted_capacity == 0
    assert info.evicted_steps == 1000 - info.size
    assert 200 < info.size <= 300
    assert info.steps <= info.steps_capacity == 600


def test_a_batch_may_be_larger_than_the_table(open_replay):
    replay = open_replay(simple(capacity=3))
    with replay.actor("s") as actor, replay.learner("t", batch_size=1000, timeout=10) as learner:
        keys = feed(actor, 3)
        batch = learner.sample()
        assert len(batch) == 1000
        assert set(batch.keys.tolist()) == set(keys.tolist())


def test_keys_survive_torch_and_halves(open_replay):
    replay = open_replay(simple())
    with replay.actor("s") as actor, replay.learner("t", batch_size=4) as learner:
        keys = feed(actor, 50)
        assert keys.dtype == np.int64
        assert (keys >= 0).all()
        assert learner.update_priorities(torch.from_numpy(keys).clone(), np.ones(50)).applied == 50
        halves = netreplay.split_keys(keys)
        assert halves.dtype == np.uint32
        assert np.array_equal(netreplay.join_keys(halves.astype(np.float64)), keys)


def test_keys_of_nothing_are_stale(open_replay):
    replay = open_replay(simple())
    with replay.actor("s") as actor, replay.learner("t", batch_size=4) as learner:
        feed(actor, 5)
        result = learner.update_priorities([0, -1, 2**62, -(2**63), 12345], np.full(5, 9.0))
        assert result.stale == 5
        assert replay.table("t").info().max_priority == 1.0


def test_flush_gives_each_key_once_and_in_order(open_replay):
    replay = open_replay(simple(capacity=5000))
    with replay.actor("s") as actor:
        assert actor.flush().shape == (0,)
        first = feed(actor, 700)
        second = feed(actor, 3)
        assert (len(first), len(second)) == (700, 3)
        assert len({*first.tolist(), *second.tolist()}) == 703
        assert actor.flush().shape == (0,)


def test_a_store_sized_in_bytes_never_holds_more(open_replay):
    """Case 14: long windows fill it with fewer items than the table has places."""
    text = simple(capacity=100_000).replace("[table.t]", 'bytes = "40 kB"\nstreams = 4\nin_flight = 8\n[table.t]')
    replay = open_replay(text)
    with replay.actor("s") as actor:
        feed(actor, 2000)
    info = replay.table("t").info()
    assert info.inserted == 2000
    assert info.step_bytes_held <= 40_000
    assert info.size < 1250
    assert info.evicted_steps == 2000 - info.size


def test_a_table_reports_itself_in_items_and_bytes(open_replay):
    replay = open_replay(simple())
    with replay.actor("s") as actor:
        feed(actor, 10)
    info = replay.table("t").info()
    assert (info.size, info.inserted, info.steps) == (10, 10, 20)
    assert info.step_bytes_held == 20 * 32
    assert info.item_bytes_held > 0
