"""Looking without sampling: items by their keys, and histograms, over every transport."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Open
from feeding import feed
from specs import simple

import netreplay


def test_get_gives_the_rows_of_the_keys_in_their_order_and_zeros_for_what_is_not_there(open_replay: Open) -> None:
    replay = open_replay(simple(capacity=500, min_size=500))  # no draw is let through, and none is needed
    actor, table = replay.actor("s"), replay.table("t")
    keys = feed(actor, 300, priority=[float(1 + i % 7) for i in range(300)])
    order = np.random.default_rng(1).permutation(300)
    asked = np.concatenate([keys[order], [12345, -1], keys[:2]])
    batch = table.get(asked)
    assert batch.found.tolist() == [True] * 300 + [False] * 2 + [True] * 2
    assert batch.keys[:300].tolist() == keys[order].tolist()
    assert batch.keys[300:302].tolist() == [-1, -1]
    assert batch["action"].tolist() == [*order.tolist(), 0, 0, 0, 1]
    assert np.array_equal(batch["obs"][:300], np.repeat(order[:, None], 4, 1).astype(np.float32))
    assert not batch["next_obs"][300:302].any()
    total = sum(1 + i % 7 for i in range(300))
    assert np.allclose(batch.probabilities[:300], (1 + order % 7) / total, rtol=1e-6)
    assert batch.probabilities[300:302].tolist() == [0, 0]
    info = table.info()
    assert (info.sampled, info.reserved) == (0, 0)


def test_get_sees_what_has_left_as_not_there(open_replay: Open) -> None:
    replay = open_replay(simple(capacity=10))
    keys = feed(replay.actor("s"), 15)
    assert replay.table("t").get(keys).found.tolist() == [False] * 5 + [True] * 10
    assert len(replay.table("t").get([])) == 0
    assert replay.table("t").get(keys[-1:].tolist()).found.tolist() == [True]


def test_get_holds_no_leases_when_it_is_over_and_few_leases_are_enough(open_replay: Open) -> None:
    replay = open_replay(simple(capacity=200, table="leases = 7"))
    keys = feed(replay.actor("s"), 100)
    table = replay.table("t")
    for _ in range(5):
        batch = table.get(keys, timeout=10)
        assert batch.found.all()
        assert batch["action"].tolist() == list(range(100))
    with replay.learner("t", batch_size=7, timeout=10) as learner:
        learner.sample()


def test_get_refuses_what_are_no_keys(open_replay: Open) -> None:
    table = open_replay(simple()).table("t")
    for bad in ([1.5], [[1]], ["x"]):
        with pytest.raises(netreplay.ColumnError, match="keys"):
            table.get(bad)


def test_a_get_is_not_held_up_by_samples_that_wait(open_replay: Open) -> None:
    replay = open_replay(simple(min_size=100))
    keys = feed(replay.actor("s"), 3)
    with replay.learner("t", batch_size=2, prefetch=3) as learner:
        with pytest.raises(netreplay.Timeout):
            learner.sample(timeout=0.05)
        assert replay.table("t").get(keys, timeout=5).found.all()


def test_histograms_count_each_item_once(open_replay: Open) -> None:
    replay = open_replay(simple(capacity=400))
    priorities = [0.0, 0.5, 1.0, 1.5, 3.0] * 100
    feed(replay.actor("s"), 500, priority=priorities)  # the first hundred have left
    with replay.learner("t", batch_size=50, timeout=10) as learner:
        drawn = [learner.sample().keys for _ in range(4)]
    found = replay.table("t").histograms()
    assert found.items == 400
    edges, counts = found.priority
    assert len(edges) == len(counts) + 1
    assert np.all(np.diff(edges) > 0)
    by_priority = {float(edges[i]): int(counts[i]) for i in np.flatnonzero(counts)}
    assert by_priority == {0.0: 80, 0.5: 80, 1.0: 160, 2.0: 80}
    assert found.age.counts.sum() == 400
    assert found.age.edges[np.flatnonzero(found.age.counts)[-1]] < 60
    _, times = np.unique(np.concatenate(drawn), return_counts=True)
    low, high = found.sampled.edges[:-1], found.sampled.edges[1:]
    expected = [int(((times >= a) & (times < b)).sum()) for a, b in zip(low, high, strict=True)]
    expected[0] = 400 - len(times)
    assert found.sampled.counts.tolist() == expected


def test_histograms_of_an_empty_table(open_replay: Open) -> None:
    found = open_replay(simple()).table("t").histograms()
    assert found.items == 0
    assert not found.priority.counts.any()
