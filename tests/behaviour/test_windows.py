"""Items are windows over steps, with their edges: compared with a reference of a few lines. Semantics 2."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from feeding import see_all
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from reference import Episode, items_of
from specs import simple

import netreplay
from netreplay.errors import BadCountError

GAMMA = 0.9


@st.composite
def episodes(draw):
    """Up to five episodes, each observation a number of its own."""
    made, number = [], 0
    for _ in range(draw(st.integers(1, 5))):
        length = draw(st.integers(1, 9))
        observations = [float(number + i) for i in range(length + 1)]
        number += length + 1
        rewards = draw(st.lists(st.integers(-3, 3), min_size=length, max_size=length))
        made.append(
            Episode(observations, [int(o) for o in observations[:-1]], [float(r) for r in rewards], draw(st.booleans()))
        )
    return made


def play(actor, episode, collect):
    for t in range(len(episode)):
        last = t == len(episode) - 1
        actor.append(
            obs=np.array([episode.observations[t]], np.float32),
            action=episode.actions[t],
            reward=episode.rewards[t],
            terminated=last and episode.terminated,
            truncated=last and not episode.terminated,
            priority=collect,
        )
    actor.end(obs=np.array([episode.observations[-1]], np.float32), priority=collect)


def compare(found, item, stack):
    shape = (stack, 1) if stack > 1 else (1,)
    assert found["obs"].shape == found["next_obs"].shape == shape
    assert found["obs"].reshape(-1).tolist() == item.obs
    assert (int(found["action"]), int(found["length"])) == (item.action, item.length)
    assert float(found["reward"]) == item.reward
    assert float(found["discount"]) == item.discount
    if item.usable:
        assert found["next_obs"].reshape(-1).tolist() == item.next_obs


@pytest.mark.parametrize(("stack", "n"), list(product([1, 2, 4], [1, 2, 3, 5])))
def test_items_are_those_of_the_reference(open_replay, stack, n):
    toml = simple(
        stack=stack, n=n, gamma=GAMMA, sampler="uniform", capacity=4000, observation='{dtype = "float32", shape = [1]}'
    )
    replay = open_replay(toml)
    before = [0]

    @settings(
        max_examples=25,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        phases=[Phase.explicit, Phase.generate],
    )
    @given(episodes())
    def check(played):
        expected = [item for episode in played for item in items_of(episode, stack, n, GAMMA)]
        staged = []

        def collect(items):
            rows = len(items["reward"])
            staged.extend({field: np.array(values[i]) for field, values in items.items()} for i in range(rows))
            return np.zeros(rows) if before[0] else 1.0

        with replay.actor("s") as actor:
            for episode in played:
                play(actor, episode, collect)
            keys = actor.flush()
            counters = actor.counters()
        assert len(keys) == len(staged) == len(expected)
        for found, item in zip(staged, expected, strict=True):
            compare(found, item, stack)
        assert counters.episodes == len(played)
        assert counters.truncated_dropped == sum(map(len, played)) - len(expected)
        assert counters.steps == sum(len(e) + 1 for e in played)

    check()
    # What is stored is what was staged: the last example's items again, through a draw.
    played = [Episode([5000.0 + i for i in range(8)], list(range(7)), [1.0] * 7, True)]
    with replay.actor("s") as actor, replay.learner("t", batch_size=2000, timeout=10) as learner:
        play(actor, played[0], None)
        keys = actor.flush()
        size = replay.table("t").info().size
        seen = see_all(learner, size)
        for key, item in zip(keys.tolist(), items_of(played[0], stack, n, GAMMA), strict=True):
            compare(seen[key], item, stack)


def test_streams_of_several_actors_stay_apart(open_replay):
    replay = open_replay(simple(n=3, stack=2, capacity=500, sampler="uniform"))
    actors = [replay.actor("s") for _ in range(4)]
    for t in range(20):
        for who, actor in enumerate(actors):
            value = np.full(4, 1000 * who + t, np.float32)
            actor.append(obs=value, action=who, reward=0.0, terminated=False, truncated=False)
    for actor in actors:
        actor.close()
    with replay.learner("t", batch_size=500, timeout=10) as learner:
        batch = learner.sample()
        assert np.array_equal(batch["obs"][:, 1, 0] // 1000, batch["action"])
        assert np.array_equal(batch["next_obs"][:, 1, 0], batch["obs"][:, 1, 0] + 3)


def test_several_tables_of_a_store_share_its_steps(open_replay):
    more = '[table.u]\nstore = "s"\ncapacity = 50\nsampler = "uniform"\nwindow = {n = 3, gamma = 0.5, stack = 2}\n'
    replay = open_replay(simple(capacity=50, sampler="uniform", more=more))
    with replay.actor("s") as actor:
        for t in range(10):
            value = np.full(4, t, np.float32)
            actor.append(obs=value, action=t, reward=1.0, terminated=False, truncated=False)
        assert len(actor.flush()) == 9 + 7
    infos = replay.tables()
    assert (infos["t"].size, infos["u"].size, infos["t"].steps) == (9, 7, 10)
    with replay.learner("u", batch_size=64, timeout=10) as learner:
        batch = learner.sample()
        assert np.array_equal(batch["next_obs"][:, 1, 0], batch["action"] + 3.0)
        assert np.allclose(batch["reward"], 1.75)


def test_the_version_column_is_that_of_the_last_fetch(open_replay):
    replay = open_replay(simple(sampler="uniform"))
    with replay.actor("s") as actor, replay.learner("t", batch_size=100, timeout=10) as learner:
        row = {"obs": np.zeros(4), "reward": 0.0, "terminated": False, "truncated": False}
        actor.append(**row, action=0)
        actor.append(**row, action=1)
        version = replay.parameters.publish({"w": np.ones(3)})
        replay.parameters.fetch()
        actor.append(**row, action=2)
        with replay.actor("s") as other:
            other.append(**row, action=10)
            other.append(**row, action=11)
        actor.flush()
        seen = {int(f["action"]): int(f["version"]) for f in see_all(learner, 3).values()}
        assert seen == {0: 0, 1: version, 10: version}


def test_after_a_done_row_the_final_observation_is_due(open_replay):
    replay = open_replay(simple())
    with replay.actor("s") as actor:
        row = {"obs": np.zeros(4), "action": 0, "reward": 0.0, "truncated": False}
        with pytest.raises(BadCountError, match="end"):
            actor.end(obs=np.zeros(4))
        actor.append(**row, terminated=True)
        with pytest.raises(BadCountError, match="row 0: a row after a done row must be end"):
            actor.append(**row, terminated=False)
        actor.end(obs=np.zeros(4))
        actor.append(**row, terminated=False)
        assert len(actor.flush()) == 1


def test_the_public_names_of_a_batch(open_replay):
    replay = open_replay(simple(stack=3))
    with replay.actor("s") as actor, replay.learner("t", batch_size=8, timeout=10) as learner:
        for t in range(5):
            actor.append(obs=np.full(4, t), action=t, reward=t, terminated=False, truncated=False)
        actor.flush()
        batch = learner.sample()
        assert isinstance(batch, netreplay.Batch)
        assert batch.fields == ("version", "reward", "discount", "length", "action", "obs", "next_obs")
        assert list(batch) == list(batch.fields)
        assert "obs" in batch
        assert "key" not in batch
        assert batch["obs"].shape == batch["next_obs"].shape == (8, 3, 4)
        with pytest.raises(KeyError, match="no field 'state'; it has: version"):
            batch["state"]
