"""Samplers, removers and max_sampled: what is drawn, who leaves, and what a batch says of it. Cases 3, 5, 6, 13, 27."""

from __future__ import annotations

import time

import numpy as np
import pytest
from feeding import counts, feed
from specs import simple

import netreplay
from netreplay.errors import BadCountError, EmptyTimeout, PassesTimeout, SpecError

DISTINCT = ("fifo", "lifo", "max_heap", "min_heap")
LOOKING = ("prioritized", "stratified", "max_heap", "min_heap", "top_k")
SAMPLERS = (*DISTINCT, "prioritized", "uniform", "stratified", "top_k", "without_replacement")


def spec_of(sampler, **options):
    """A table with that sampler; `top` is 3 where it is wanted."""
    table = options.pop("table", "") + ("\ntop = 3" if sampler == "top_k" else "")
    return simple(sampler=sampler, table=table, **options)


def drawn(learner):
    """The keys of the next batch, in order."""
    return learner.sample(timeout=10).keys.tolist()


# ---- samplers ----


def test_lifo_gives_the_newest_first_and_the_same_again(open_replay):
    replay = open_replay(simple(sampler="lifo", capacity=5))
    with replay.actor("s") as actor, replay.learner("t", batch_size=3) as learner:
        keys = feed(actor, 8)
        for _ in range(2):
            batch = learner.sample(timeout=10)
            assert batch.keys.tolist() == keys[:4:-1].tolist()
            assert batch.probabilities.tolist() == [1.0] * 3


@pytest.mark.parametrize("sampler", ["max_heap", "min_heap"])
def test_heaps_give_the_largest_or_least_first_and_ties_in_order(open_replay, sampler):
    replay = open_replay(simple(sampler=sampler))
    priorities = [3.0, 0.0, 1.0, 7.0, 3.0, 0.5, 7.0]
    with replay.actor("s") as actor, replay.learner("t", batch_size=5) as learner:
        keys = feed(actor, 7, priorities).tolist()
        order = [3, 6, 0, 4, 2] if sampler == "max_heap" else [5, 2, 0, 4, 3]
        assert drawn(learner) == [keys[i] for i in order]
        learner.update_priorities([keys[2]], [100.0 if sampler == "max_heap" else 0.1])
        assert drawn(learner)[0] == keys[2]


def test_top_k_draws_alike_from_the_largest(open_replay):
    replay = open_replay(simple(sampler="top_k", table="top = 4"))
    with replay.actor("s") as actor:
        keys = feed(actor, 10, np.arange(10.0))
        found = counts(replay, "t", keys, 8000)
    assert (found[:6] == 0).all()
    statistic = float(((found[6:] - 2000.0) ** 2 / 2000.0).sum())
    assert 0.01 < statistic < 30


def test_top_k_above_the_size_draws_from_all_that_is_positive(open_replay):
    replay = open_replay(simple(sampler="top_k", table="top = 50"))
    with replay.actor("s") as actor, replay.learner("t", batch_size=64) as learner:
        keys = feed(actor, 5, [0.0, 1.0, 2.0, 3.0, 4.0])
        batch = learner.sample(timeout=10)
        assert set(batch.keys.tolist()) <= set(keys[1:].tolist())
        assert batch.probabilities.tolist() == [0.25] * 64


def test_stratified_draws_come_from_their_parts_and_have_weights(open_replay):
    replay = open_replay(simple(sampler="stratified"))
    with replay.actor("s") as actor, replay.learner("t", batch_size=10) as learner:
        keys = feed(actor, 4, [1.0, 2.0, 3.0, 4.0]).tolist()
        for _ in range(20):
            batch = learner.sample(timeout=10)
            # Ten draws from a mass of ten: leaf i is hit exactly as often as it weighs.
            assert sorted(keys.index(key) for key in batch.keys.tolist()) == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
            share = np.array([(keys.index(key) + 1) / 10 for key in batch.keys.tolist()])
            assert np.allclose(batch.probabilities, share)
            assert np.allclose(batch.weights(1.0, None), 1 / (4 * share))
            assert np.allclose(batch.weights(1.0, "table"), 0.1 / share)


def test_a_pass_gives_every_item_once_and_then_another_begins(open_replay):
    replay = open_replay(simple(sampler="without_replacement"))
    with replay.actor("s") as actor, replay.learner("t", batch_size=5) as learner:
        keys = set(feed(actor, 10, 0.0).tolist())  # it does not look at priorities
        for _ in range(3):
            first, second = learner.sample(timeout=10), learner.sample(timeout=10)
            assert set(first.keys.tolist()) | set(second.keys.tolist()) == keys
            probabilities = [*first.probabilities, *second.probabilities]
            assert np.allclose(probabilities, 1 / np.arange(10, 0, -1))
            assert first.weights(1.0).tolist() == [1.0] * 5


def test_the_last_pass_ends_with_a_reason_and_new_items_join_it(open_replay):
    replay = open_replay(simple(sampler="without_replacement", table="passes = 2"))
    with replay.actor("s") as actor, replay.learner("t", batch_size=3) as learner:
        feed(actor, 4)
        assert len({*drawn(learner), *drawn(learner)}) == 4  # three, then one of the first pass and two of the second
        with pytest.raises(PassesTimeout) as caught:
            learner.sample(timeout=0.2)
        assert (caught.value.have, caught.value.need) == (2, 3)
        new = feed(actor, 1, first=4)[0]
        assert new in drawn(learner)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_zero_is_never_drawn_by_what_looks_at_priorities(open_replay, sampler):
    replay = open_replay(spec_of(sampler))
    with replay.actor("s") as actor, replay.learner("t", batch_size=1) as learner:
        keys = feed(actor, 2, 0.0).tolist()
        if sampler in LOOKING:
            with pytest.raises(EmptyTimeout) as caught:
                learner.sample(timeout=0.2)
            assert (caught.value.have, caught.value.need) == (2, 1)
            learner.update_priorities([keys[1]], [1e-9])
            assert drawn(learner) == [keys[1]]
        else:
            assert drawn(learner)[0] in keys


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("items", [1, 2, 3])
def test_first_last_and_only_items_are_drawn(open_replay, sampler, items):
    replay = open_replay(spec_of(sampler, capacity=3))
    with replay.actor("s") as actor, replay.learner("t", batch_size=items) as learner:
        feed(actor, 4)
        keys = set(feed(actor, items, first=4).tolist())
        seen: set[int] = set()
        for _ in range(200):
            seen |= set(drawn(learner))
            if keys <= seen or sampler in DISTINCT:
                break
        assert keys <= seen or sampler in ("fifo", "max_heap", "min_heap")


# ---- removers ----


def survivors(replay, keys):
    """Which of the keys name an item, by an update that changes nothing."""
    with replay.learner("t", batch_size=1) as learner:
        return (learner.update_priorities(keys, np.ones(len(keys))).outcome == 0).tolist()


def test_the_lowest_priority_leaves_first(open_replay):
    replay = open_replay(simple(capacity=4, table='remover = "lowest_priority"'))
    with replay.actor("s") as actor, replay.learner("t", batch_size=1) as learner:
        keys = feed(actor, 4, [5.0, 1.0, 3.0, 1.0])
        learner.update_priorities(keys[:1], [0.5])
        more = feed(actor, 3, [2.0, 2.0, 0.0], first=4)
        assert survivors(replay, np.concatenate([keys, more])) == [False, False, True, False, True, True, True]
        assert replay.table("t").info().evicted_capacity == 3


def test_the_oldest_version_leaves_first(open_replay):
    replay = open_replay(simple(capacity=4, table='remover = "oldest"'))
    with replay.actor("s") as actor:
        versions, keys = [], []
        for i in range(3):
            keys += feed(actor, 1, first=i).tolist()
            replay.parameters.publish({"w": np.full(3, i, np.float32)})
            versions.append(replay.parameters.fetch()[0])
        keys += feed(actor, 2, first=3).tolist()
    assert versions == sorted(set(versions))
    assert survivors(replay, np.array(keys)) == [False, True, True, True, True]


def test_the_uniform_remover_spares_nobody_and_prefers_nobody(open_replay):
    replay = open_replay(simple(capacity=50, table='remover = "uniform"'))
    with replay.actor("s") as actor:
        keys = feed(actor, 150)
    left = np.flatnonzero(survivors(replay, keys))
    assert len(left) == 50
    # The oldest third survives 100 evictions with (49/50)^100 = 13 %: about 6.6 of 50, and not none, and not most.
    assert 0 < (left < 50).sum() < 25
    assert (left >= 100).sum() > 15


# ---- max_sampled ----


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_an_item_leaves_with_the_last_draw_it_may_have(open_replay, sampler):
    replay = open_replay(spec_of(sampler, table="max_sampled = 3"))
    with replay.actor("s") as actor, replay.learner("t", batch_size=4) as learner:
        keys = feed(actor, 8, 1.0).tolist()
        seen = [key for _ in range(6) for key in drawn(learner)]
        assert sorted(seen) == sorted(keys * 3)
        with pytest.raises(netreplay.errors.Timeout):
            learner.sample(timeout=0.3)
        info = replay.table("t").info(timeout=10)
        assert (info.size, info.evicted_sampled, info.sampled) == (0, 8, 24)


def test_no_item_is_in_a_batch_more_often_than_it_may_be(open_replay):
    replay = open_replay(simple(table="max_sampled = 2"))
    with replay.actor("s") as actor, replay.learner("t", batch_size=6) as learner:
        keys = feed(actor, 3, [1e6, 1.0, 1.0]).tolist()
        assert sorted(drawn(learner)) == sorted(keys * 2)
        feed(actor, 2, 1.0, first=3)
        with pytest.raises(EmptyTimeout) as caught:
            learner.sample(timeout=0.3)
        assert (caught.value.have, caught.value.need) == (4, 6)


def test_what_was_fetched_ahead_and_never_taken_comes_back(open_replay):
    replay = open_replay(simple(sampler="fifo", table="max_sampled = 1"))
    with replay.actor("s") as actor:
        keys = feed(actor, 6).tolist()
        learner = replay.learner("t", batch_size=2, prefetch=1)
        assert drawn(learner) == keys[:2]
        learner.close()  # one batch was ahead
        with replay.learner("t", batch_size=4) as other:
            assert drawn(other) == keys[2:]
    deadline = time.monotonic() + 10
    while replay.table("t").info().size:
        assert time.monotonic() < deadline
    assert replay.table("t").info().evicted_sampled == 6


# ---- refusals ----


@pytest.mark.parametrize("sampler", DISTINCT)
def test_a_batch_of_different_items_must_be_one_draw(open_replay, sampler):
    replay = open_replay(simple(sampler=sampler, capacity=20))
    with pytest.raises(BadCountError) as caught:
        replay.learner("t", batch_size=21)
    assert (caught.value.field, caught.value.value) == ("batch_size", 21)
    assert "capacity is 20" in str(caught.value)
    replay.learner("t", batch_size=20).close()


@pytest.mark.parametrize(
    ("sampler", "line", "field", "value"),
    [
        ("top_k", "", "top", None),
        ("top_k", "top = 0", "top", 0),
        ("top_k", 'top = "3"', "top", "3"),
        ("uniform", "top = 3", "top", 3),
        ("fifo", "passes = 2", "passes", 2),
        ("without_replacement", "passes = -1", "passes", -1),
        ("uniform", "max_sampled = 0", "max_sampled", 0),
        ("uniform", "max_sampled = 2147483648", "max_sampled", 2**31),
        ("uniform", 'remover = "newest"', "remover", "newest"),
        ("weighted", "", "sampler", "weighted"),
    ],
)
def test_a_spec_names_what_is_wrong(sampler, line, field, value):
    with pytest.raises(SpecError) as caught:
        netreplay.Spec.from_toml(simple(sampler=sampler, table=line))
    assert (caught.value.path, caught.value.value) == (f"table.t.{field}", value)
    assert field in str(caught.value)
