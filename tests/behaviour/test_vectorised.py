"""Vectorised environments: one call appends N streams. Case 26."""

from __future__ import annotations

import numpy as np
import pytest
from feeding import see_all
from reference import Episode, items_of
from specs import simple

from netreplay.errors import BadCountError, ColumnError

N = 5


def script(rng, steps=40):
    """done[t, env]: how episodes end, 0 not, 1 terminated, 2 truncated."""
    return rng.choice([0, 0, 0, 0, 1, 2], (steps, N))


def episodes_of(observations, done, next_step):
    """The episodes that each environment made, by the mode's rules; observations[t][env] is a number."""
    finals = observations + 0.5
    made = []
    for env in range(N):
        seen: list[float] = []
        skip = False
        for t in range(len(done)):
            if skip:  # NEXT_STEP: this row was the final observation
                skip = False
                seen = []
                continue
            seen.append(observations[t][env])
            if done[t][env]:
                if next_step:
                    if t + 1 == len(done):
                        break
                    final = observations[t + 1][env]
                    skip = True
                else:
                    final = finals[t][env]
                episode = Episode(
                    [*seen, final], [int(o) for o in seen], [float(o % 7) for o in seen], done[t][env] == 1
                )
                made.append((env, episode))
                seen = []
    return made


def row(observations, done, t):
    return {
        "obs": np.repeat(observations[t][:, None], 4, axis=1).astype(np.float32),
        "action": observations[t].astype(np.int64),
        "reward": observations[t] % 7,
        "terminated": done[t] == 1,
        "truncated": done[t] == 2,
    }


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize(("stack", "n"), [(1, 1), (1, 3), (3, 1), (2, 3)])
def test_n_streams_make_the_items_of_n_environments(open_replay, rng, mode, stack, n):
    replay = open_replay(simple(stack=stack, n=n, sampler="uniform", capacity=5000, gamma=0.5))
    done = script(rng)
    observations = np.arange(40 * N, dtype=np.float64).reshape(40, N)
    with (
        replay.actor("s", num_envs=N, autoreset=mode) as actor,
        replay.learner("t", batch_size=3000, timeout=10) as learner,
    ):
        for t in range(40):
            values = row(observations, done, t)
            if mode == "same_step" and done[t].any():
                final = np.repeat(observations[t][:, None] + 0.5, 4, axis=1).astype(np.float32)
                as_objects = [final[e] if done[t][e] else None for e in range(N)]
                forms = [
                    (final, done[t] > 0),
                    (as_objects, None),
                    (np.array([*as_objects, None], object)[:-1], None),
                    (final, None),
                ]
                values["final"], values["final_mask"] = forms[t % 4]
            actor.append(**values)
        keys = actor.flush()
        seen = see_all(learner, len(keys))
    expected = {}
    for _, episode in episodes_of(observations, done, mode == "next_step"):
        for item in items_of(episode, stack, n, 0.5):
            expected[item.action] = item
    for found in seen.values():
        item = expected.pop(int(found["action"]), None)
        if item is None:
            continue  # of an episode that goes on at the end
        last = found["obs"].reshape(-1, 4)[:, 0].tolist()
        assert last == item.obs
        assert float(found["reward"]) == item.reward
        assert float(found["discount"]) == item.discount
        if item.usable:
            assert found["next_obs"].reshape(-1, 4)[:, 0].tolist() == item.next_obs
    assert expected == {}


def test_keys_come_in_the_order_call_row_anchor(open_replay):
    replay = open_replay(simple(n=2, sampler="uniform"))
    with (
        replay.actor("s", num_envs=3, autoreset="next_step") as actor,
        replay.learner("t", batch_size=500, timeout=10) as learner,
    ):
        for t in range(4):
            actor.append(
                obs=np.zeros((3, 4)), action=10 * t + np.arange(3), reward=np.zeros(3), terminated=[False] * 3,
                truncated=np.zeros(3, bool),
            )  # fmt: skip
        keys = actor.flush()
        seen = see_all(learner, len(keys))
    assert [int(seen[key]["action"]) for key in keys.tolist()] == [0, 1, 2, 10, 11, 12]


def test_priorities_by_environment(open_replay):
    replay = open_replay(simple())
    with (
        replay.actor("s", num_envs=4, autoreset="next_step") as actor,
        replay.learner("t", batch_size=64, timeout=10) as learner,
    ):
        for _ in range(2):
            actor.append(
                obs=np.zeros((4, 4)), action=np.arange(4), reward=np.zeros(4), terminated=np.zeros(4, bool),
                truncated=np.zeros(4, bool), priority=[0.0, 1.0, 2.0, 5.0],
            )  # fmt: skip
        actor.flush()
        batch = learner.sample()
        assert np.allclose(batch.probabilities, np.array([0, 1, 2, 5])[batch["action"]] / 8)


def test_one_bad_row_refuses_the_whole_call(open_replay):
    replay = open_replay(simple())
    good = {"obs": np.zeros((4, 4)), "action": np.zeros(4, int), "reward": np.zeros(4), "terminated": np.zeros(4, bool)}
    good["truncated"] = np.zeros(4, bool)
    with replay.actor("s", num_envs=4, autoreset="next_step") as actor:
        actor.append(**good)
        rewards = np.array([0.0, 0.0, 1e200, 0.0])
        with pytest.raises(ColumnError, match=r"column 'reward'\[2\]: 1e\+200 is beyond float32"):
            actor.append(**{**good, "reward": rewards})
        with pytest.raises(ColumnError, match=r"column 'obs': value has shape \[3, 4\], and \[4, 4\] is wanted"):
            actor.append(**{**good, "obs": np.zeros((3, 4))})
        with pytest.raises(ColumnError, match=r"column 'action'\[1\]: -1.5"):
            actor.append(**{**good, "action": [0, -1.5, 0, 0]})
        assert actor.counters().steps == 4
        actor.append(**good)
        assert len(actor.flush()) == 4


def test_the_autoreset_mode_must_be_said(open_replay):
    replay = open_replay(simple())
    with pytest.raises(ColumnError, match="autoreset: 3 environments need 'next_step'"):
        replay.actor("s", num_envs=3)
    with pytest.raises(ColumnError, match="autoreset: 'never' is not one of"):
        replay.actor("s", num_envs=3, autoreset="never")
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(BadCountError, match="num_envs"):
            replay.actor("s", num_envs=wrong)


def test_final_observations_belong_to_done_rows_of_same_step(open_replay):
    replay = open_replay(simple())
    values = {
        "obs": np.zeros((2, 4)),
        "action": np.zeros(2, int),
        "reward": np.zeros(2),
        "truncated": np.zeros(2, bool),
    }
    with replay.actor("s", num_envs=2, autoreset="same_step") as actor:
        with pytest.raises(BadCountError, match=r"row 1: a done row needs a final observation"):
            actor.append(**values, terminated=[False, True])
        with pytest.raises(BadCountError, match="row 0"):
            actor.append(**values, terminated=[False, True], final=np.zeros((2, 4)), final_mask=[True, True])
        with pytest.raises(ColumnError, match=r"final obs'\[1\]: value has shape \[3\]"):
            actor.append(**values, terminated=[False, True], final=[None, np.zeros(3)])
        with pytest.raises(ColumnError, match="final obs"):
            actor.append(**values, terminated=[False, True], final=np.zeros((3, 4)))
        with pytest.raises(ColumnError, match="a dict of obs is wanted"):
            actor.append(**values, terminated=[False, True], final={"state": 1})
        with pytest.raises(BadCountError, match="end\\(\\) is for one environment"):
            actor.end(obs=np.zeros((2, 4)))
        assert actor.counters().steps == 0
    with replay.actor("s") as single, pytest.raises(ColumnError, match="one environment ends with end"):
        single.append(obs=np.zeros(4), action=0, reward=0.0, terminated=True, truncated=False, final=np.zeros(4))
