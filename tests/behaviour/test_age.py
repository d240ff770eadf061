"""Windows by age and by policy version: what is too old is never drawn, and its leaving is counted by reason."""

from __future__ import annotations

import time

import numpy as np
import pytest
from conftest import Open
from feeding import feed
from specs import simple

import netreplay


def publish(replay: netreplay.Replay, actor: netreplay.Actor | None = None) -> None:
    """One publication; the connection's actors make items of it from then on."""
    replay.parameters.publish({"w": np.zeros(2, np.float32)})
    replay.parameters.fetch()


@pytest.mark.parametrize("sampler", ["prioritized", "uniform", "fifo"])
def test_items_older_than_max_age_are_not_drawn(open_replay: Open, sampler: str) -> None:
    replay = open_replay(simple(sampler=sampler, table="max_age = 0.4"))
    actor, table = replay.actor("s"), replay.table("t")
    old = feed(actor, 50, priority=100.0)
    time.sleep(0.45)
    new = feed(actor, 50, priority=1.0, first=50)
    begin = time.monotonic()
    with replay.learner("t", batch_size=50, timeout=5) as learner:
        keys = learner.sample().keys
    if time.monotonic() - begin < 0.3:
        assert set(keys.tolist()) <= set(new.tolist())
    assert not table.get(old).found.any()
    assert table.info().evicted_age >= 50


def test_when_all_are_too_old_a_sample_waits_for_new_ones(open_replay: Open) -> None:
    replay = open_replay(simple(table="max_age = 0.2"))
    feed(replay.actor("s"), 5)
    time.sleep(0.25)
    with replay.learner("t", batch_size=1) as learner, pytest.raises(netreplay.Timeout):
        learner.sample(timeout=0.05)


@pytest.mark.parametrize("sampler", ["prioritized", "uniform"])
def test_items_behind_by_more_publications_than_max_lag_are_not_drawn(open_replay: Open, sampler: str) -> None:
    replay = open_replay(simple(sampler=sampler, table="max_lag = 1"))
    actor, table = replay.actor("s"), replay.table("t")
    unknown = feed(actor, 3, priority=1.0)  # before the first publication: no version
    keys = []
    for i in range(3):
        publish(replay)
        keys.append(feed(actor, 20, priority=1.0, first=100 * i))
    with replay.learner("t", batch_size=200, timeout=5) as learner:
        batch = learner.sample()
        present = int(batch["version"].max())
        assert set(batch["version"].tolist()) <= {0, present, present - 1}
        publish(replay)
        batch = learner.sample()
        assert set(batch["version"].tolist()) <= {0, present}
    assert not table.get(np.concatenate(keys[:2])).found.any()
    assert table.get(keys[2]).found.all()
    assert table.get(unknown).found.all()
    info = table.info()
    assert info.evicted_version == 40
    assert info.size == 23
    assert info.evicted == 40
    assert info.replay_ratio == info.sampled / info.inserted


def test_what_comes_too_late_is_accepted_and_takes_no_place(open_replay: Open) -> None:
    replay = open_replay(simple(capacity=5, table="max_lag = 0"))
    actor, table = replay.actor("s"), replay.table("t")
    publish(replay)
    late = feed(actor, 1)
    replay.parameters.publish({"w": np.zeros(2, np.float32)})  # not fetched: the actor's items are one behind
    assert feed(actor, 2, first=1).tolist() == [-1, -1]
    replay.parameters.fetch()
    fresh = feed(actor, 5, first=3)
    assert table.get(fresh).found.all()
    assert not table.get(late).found.any()
    info = table.info()
    assert (info.inserted, info.evicted_version, info.evicted_capacity) == (8, 3, 0)


def test_many_leave_and_a_sample_that_waited_for_it_is_served(open_replay: Open) -> None:
    replay = open_replay(simple(capacity=20_000, n=1, table="max_lag = 0"))
    publish(replay)
    actor = replay.actor("s", num_envs=50, autoreset="next_step")
    rows = np.zeros((50, 4), np.float32)
    done, not_done = np.ones(50, bool), np.zeros(50, bool)
    for _i in range(200):
        actor.append(obs=rows, action=np.zeros(50, np.int64), reward=np.zeros(50), terminated=done, truncated=not_done)
        actor.append(
            obs=rows, action=np.zeros(50, np.int64), reward=np.zeros(50), terminated=not_done, truncated=not_done
        )
    actor.flush()
    assert replay.table("t").info().size == 10_000
    publish(replay)
    with replay.learner("t", batch_size=10, timeout=0.2) as learner, pytest.raises(netreplay.Timeout):
        learner.sample()  # nothing is left
    info = replay.table("t").info()
    assert (info.size, info.evicted_version) == (0, 10_000)


@pytest.mark.parametrize(
    ("line", "path", "value"),
    [
        ("max_age = 0", "max_age", 0),
        ('max_age = "1"', "max_age", "1"),
        ("max_lag = -1", "max_lag", -1),
        ("max_lag = 16384", "max_lag", 16384),
        ("max_lag = 1.5", "max_lag", 1.5),
        ('parameters = "nobody"', "parameters", "nobody"),
        ("parameters = 3", "parameters", 3),
    ],
)
def test_bad_limits_are_refused_by_name(line: str, path: str, value: object) -> None:
    with pytest.raises(netreplay.SpecError) as caught:
        netreplay.Spec.from_toml(simple(table=line))
    assert caught.value.path == f"table.t.{path}"
    assert caught.value.value == value
