"""Priorities: what is refused, what is kept, how often what is drawn. Cases 1 to 9."""

from __future__ import annotations

import math

import numpy as np
import pytest
from feeding import counts, feed
from specs import simple

from netreplay.errors import BadPriorityError, ColumnError, EmptyTimeout, ItemsRefused, Status

BAD = [math.nan, math.inf, -math.inf, -1.0, -1e-7, -1e-300]


def chi_square_fits(observed: np.ndarray, probabilities: np.ndarray) -> bool:
    """Within six standard deviations of the statistic's mean: fails by chance once in 10^8 runs or so."""
    expected = probabilities * observed.sum()
    drawn = expected > 0
    statistic = float(((observed[drawn] - expected[drawn]) ** 2 / expected[drawn]).sum())
    freedom = int(drawn.sum()) - 1
    return observed[~drawn].sum() == 0 and statistic < freedom + 6 * math.sqrt(2 * freedom) + 12


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", [0, 15, 31])
def test_a_bad_priority_at_insert_is_refused_alone(open_replay, bad, where):
    replay = open_replay(simple())
    priorities = [1.0] * 32
    priorities[where] = bad
    with replay.actor("s") as actor:
        with pytest.raises(ItemsRefused) as caught:
            feed(actor, 32, priorities)
        assert [r.index for r in caught.value.refused] == [where]
        assert caught.value.refused[0].status == Status.BAD_PRIORITY
        assert str(caught.value.refused[0].value) == str(bad)
        assert f"item {where}" in str(caught.value)
        assert caught.value.keys[where] == -1
        assert len(set(caught.value.keys.tolist())) == 32
        assert len(feed(actor, 3)) == 3
    info = replay.table("t").info()
    assert (info.size, info.refused) == (34, 1)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", [0, 15, 31])
def test_a_bad_priority_in_an_update_is_refused_alone(open_replay, bad, where):
    replay = open_replay(simple())
    with replay.actor("s") as actor, replay.learner("t", batch_size=1) as learner:
        keys = feed(actor, 32)
        priorities = np.full(32, 3.0)
        priorities[where] = bad
        result = learner.update_priorities(keys, priorities)
        assert (result.applied, result.stale, result.refused, result.superseded) == (31, 0, 1, 0)
        assert result.outcome.tolist() == [2 if i == where else 0 for i in range(32)]
    assert replay.table("t").info().max_priority == 3.0


def test_one_bad_client_never_stops_a_table(open_replay):
    replay = open_replay(simple())
    with replay.actor("s") as good, replay.actor("s") as bad, replay.learner("t", batch_size=8) as learner:
        keys = feed(good, 8, 2.0)
        with pytest.raises(ItemsRefused):
            feed(bad, 8, math.nan)
        assert learner.update_priorities(keys, np.full(8, math.nan)).refused == 8
        assert set(learner.sample(timeout=5).keys.tolist()) <= set(keys.tolist())
        assert len(feed(bad, 1, 1.0)) == 1


@pytest.mark.parametrize("priority", [5e-324, 1e-300, 1e-7, 1e38, 1e300, 1.7976931348623157e308])
def test_extreme_priorities_stay_drawable_and_finite(open_replay, priority):
    replay = open_replay(simple(capacity=100))
    with replay.actor("s") as actor, replay.learner("t", batch_size=64, timeout=10) as learner:
        keys = feed(actor, 1, priority)
        batch = learner.sample()
        assert set(batch.keys.tolist()) == set(keys.tolist())
        assert np.array_equal(batch.probabilities, np.ones(64))
        assert np.isfinite(batch.weights(1.0, "table")).all()
        assert replay.table("t").info().max_priority == priority


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zero_is_never_drawn_and_all_zero_is_nothing_to_draw(open_replay, zero):
    replay = open_replay(simple())
    with replay.actor("s") as actor, replay.learner("t", batch_size=256, timeout=0.3) as learner:
        keys = feed(actor, 4, zero)
        with pytest.raises(EmptyTimeout, match=r"nothing can be drawn in table 't'"):
            learner.sample()
        learner.update_priorities(keys[2:3], [1.0])
        assert set(learner.sample(timeout=10).keys.tolist()) == {int(keys[2])}


@pytest.mark.parametrize("items", [1, 2, 3])
@pytest.mark.parametrize("sampler", ["prioritized", "uniform"])
def test_first_last_and_only_items_are_drawn(open_replay, items, sampler):
    replay = open_replay(simple(sampler=sampler, capacity=max(items, 3)))
    with replay.actor("s") as actor:
        keys = feed(actor, items)
        assert (counts(replay, "t", keys, 2000) > 0).all()


@pytest.mark.parametrize(
    ("exponent", "priorities", "weights"),
    [(0.5, [4.0, 1.0], [2, 1]), (2.0, [3.0, 1.0], [9, 1]), (1.0, [0.37, 0.63], [37, 63])],
)
def test_the_exponent_is_applied_once(open_replay, exponent, priorities, weights):
    replay = open_replay(simple(exponent=exponent))
    with replay.actor("s") as actor, replay.learner("t", batch_size=64) as learner:
        keys = feed(actor, 2, priorities)
        batch = learner.sample(timeout=10)
        expected = {int(k): w / sum(weights) for k, w in zip(keys, weights, strict=True)}
        for key, probability in zip(batch.keys.tolist(), batch.probabilities.tolist(), strict=True):
            assert probability == pytest.approx(expected[key], rel=1e-6)


def test_exponent_zero_is_uniform_over_positive_priorities(open_replay):
    replay = open_replay(simple(exponent=0.0))
    with replay.actor("s") as actor:
        keys = feed(actor, 4, [0.0, 1e-3, 1.0, 1e6])
        found = counts(replay, "t", keys, 9000)
    assert chi_square_fits(found, np.array([0, 1 / 3, 1 / 3, 1 / 3]))


def test_without_a_priority_the_largest_now_in_the_table_is_taken(open_replay):
    replay = open_replay(simple())
    with replay.actor("s") as actor, replay.learner("t", batch_size=256, timeout=10) as learner:
        first = feed(actor, 1)
        assert replay.table("t").info().max_priority == 1.0
        learner.update_priorities(first, [0.37])
        assert replay.table("t").info().max_priority == 0.37
        feed(actor, 1)
        assert np.allclose(learner.sample().probabilities, 0.5)
        assert replay.table("t").info().max_priority == 0.37


def test_the_probability_is_that_of_the_draw(open_replay, rng):
    priorities = rng.uniform(0, 5, 40)
    priorities[::7] = 0
    replay = open_replay(simple(capacity=64))
    with replay.actor("s") as actor, replay.learner("t", batch_size=512, timeout=10) as learner:
        keys = feed(actor, 40, priorities)
        probabilities = priorities / priorities.sum()
        batch = learner.sample()
        place = {int(key): i for i, key in enumerate(keys)}
        expected = probabilities[[place[key] for key in batch.keys.tolist()]]
        assert np.allclose(batch.probabilities, expected, rtol=1e-5)
        assert chi_square_fits(counts(replay, "t", keys, 20_000), probabilities)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_are_as_written_down(open_replay, beta):
    priorities = np.array([1.0, 2.0, 5.0, 0.5])
    replay = open_replay(simple(capacity=100))
    with replay.actor("s") as actor, replay.learner("t", batch_size=300, timeout=10) as learner:
        feed(actor, 4, priorities)
        learner.sample()
        batch = learner.sample()
        raw = (1 / (4 * batch.probabilities)) ** beta
        assert batch.weights(beta).dtype == np.float32
        assert np.allclose(batch.weights(beta, None), raw, rtol=1e-6)
        assert np.allclose(batch.weights(beta, "batch"), raw / raw.max(), rtol=1e-6)
        whole = (8.5 / (4 * 0.5)) ** beta
        assert np.allclose(batch.weights(beta, "table"), raw / whole, rtol=1e-5)
        assert np.array_equal(batch.weights(0.0), np.ones(300))
        with pytest.raises(ValueError, match="normalize: 'sum'"):
            batch.weights(beta, "sum")


def test_the_last_value_of_a_repeated_key_wins(open_replay):
    replay = open_replay(simple())
    with replay.actor("s") as actor, replay.learner("t", batch_size=128, timeout=10) as learner:
        a, b = feed(actor, 2).tolist()
        result = learner.update_priorities([a, b, a, a], [9.0, 1.0, 5.0, 3.0])
        assert result.outcome.tolist() == [3, 0, 3, 0]
        assert (result.applied, result.superseded) == (2, 2)
        chance = {a: 0.75, b: 0.25}
        batch = learner.sample()
        assert all(p == chance[k] for k, p in zip(batch.keys.tolist(), batch.probabilities.tolist(), strict=True))


def test_when_the_last_value_is_bad_none_applies(open_replay):
    replay = open_replay(simple())
    with replay.actor("s") as actor, replay.learner("t", batch_size=16) as learner:
        (a,) = feed(actor, 1).tolist()
        result = learner.update_priorities([a, a], [9.0, math.nan])
        assert result.outcome.tolist() == [3, 2]
        assert replay.table("t").info().max_priority == 1.0


def test_priorities_of_every_kind_are_taken(open_replay):
    import torch

    replay = open_replay(simple())
    with replay.actor("s") as actor, replay.learner("t", batch_size=4) as learner:
        keys = feed(actor, 4)
        for given in (
            torch.ones(4),
            torch.ones(4, requires_grad=True),
            np.ones(4, np.float32),
            [1, 2, 3, 4],
            np.ones(8)[::2],
        ):
            assert learner.update_priorities(keys, given).applied == 4
        for given_keys in (torch.from_numpy(keys), keys.tolist(), keys.astype(np.uint64), np.repeat(keys, 2)[::2]):
            assert learner.update_priorities(given_keys, np.ones(4)).applied == 4
        assert learner.update_priorities([], []).applied == 0


@pytest.mark.parametrize(
    ("keys", "priorities", "named"),
    [
        ([1, 2], [1.0], r"priorities: has shape \[1\], and \[2\] is wanted"),
        ([1.5], [1.0], r"keys: is float64"),
        ([[1]], [[1.0]], r"keys: has shape \[1, 1\]"),
        (["a"], [1.0], r"keys: is a string"),
        ([1], ["x"], r"priorities\[0\]: 'x' is a string"),
        ([1], [1j], r"priorities\[0\]: 1j is complex128"),
    ],
)
def test_what_is_no_update_is_refused_whole(open_replay, keys, priorities, named):
    replay = open_replay(simple())
    with replay.learner("t", batch_size=4) as learner, pytest.raises(ColumnError, match=named):
        learner.update_priorities(keys, priorities)


def test_a_priority_callable_sees_the_items(open_replay):
    replay = open_replay(simple(n=2, gamma=0.5))
    seen = []

    def priority(items):
        seen.append({name: values.copy() for name, values in items.items()})
        return items["reward"] + 1.0

    with replay.actor("s") as actor:
        for i in range(4):
            actor.append(obs=np.full(4, i), action=i, reward=i, terminated=False, truncated=False, priority=priority)
        actor.flush()
    rewards = [float(x) for items in seen for x in items["reward"]]
    assert rewards == [0 + 0.5 * 1, 1 + 0.5 * 2]
    assert seen[0]["obs"].tolist() == [[0.0] * 4]
    assert seen[0]["next_obs"].tolist() == [[2.0] * 4]
    assert seen[0]["row"].tolist() == [0]
    assert replay.table("t").info().max_priority == 3.0


def test_a_failing_priority_callable_leaves_nothing_behind(open_replay):
    replay = open_replay(simple())
    with replay.actor("s") as actor:
        row = {"obs": np.zeros(4), "action": 0, "reward": 0.0, "terminated": False, "truncated": False}
        actor.append(**row)
        for bad in (lambda items: 1 / 0, lambda items: [1.0, 2.0], lambda items: "high"):
            with pytest.raises((ZeroDivisionError, ColumnError)):
                actor.append(**row, priority=bad)
        with pytest.raises(ColumnError, match="priority"):
            actor.append(**row, priority="high")
        assert actor.counters().items == 0
        actor.append(**row, priority=lambda items: 4.0)
        assert len(actor.flush()) == 1


def test_the_bad_priority_class_says_what_is_bad():
    assert "NaN, infinite or negative" in (BadPriorityError.__doc__ or "")
