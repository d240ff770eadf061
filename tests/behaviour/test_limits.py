"""What does not fit what the server has room for is refused where it is asked for, and says what to change."""

from __future__ import annotations

import numpy as np
import pytest
from specs import simple

from netreplay.errors import ColumnError, TooManyError


def test_more_environments_than_streams_are_refused_at_once(open_replay):
    replay = open_replay(simple(store="streams = 8"))
    with pytest.raises(TooManyError, match=r"num_envs: 9 is above the 8 streams.*raise store\.s\.streams"):
        replay.actor("s", num_envs=9, autoreset="next_step")
    replay.actor("s", num_envs=8, autoreset="next_step").close()


@pytest.mark.parametrize("dtype", ["datetime64[ns]", "timedelta64[s]"])
def test_big_endian_times_are_converted(open_replay, dtype):
    replay = open_replay(simple(observation=f'{{dtype = "{dtype}", shape = [3]}}'))
    values = np.array([1, 2**40, -5]).astype(dtype)
    with replay.actor("s") as actor:
        big = values.astype(values.dtype.newbyteorder(">"))
        actor.append(obs=big, action=1, reward=0.0, terminated=True, truncated=False)
        actor.end(obs=big)
        actor.flush()
    with replay.learner("t", batch_size=1, timeout=10) as learner:
        np.testing.assert_array_equal(learner.sample()["obs"][0], values)


MASKED = {
    "masked": np.ma.masked_array(np.arange(4.0, dtype=np.float32), [False, True, False, False]),
    "nothing masked": np.ma.masked_array(np.arange(4.0, dtype=np.float32)),
    "all masked": np.ma.masked_all(4, np.float32),
    "in a list": [np.ma.masked, 1.0, 2.0, 3.0],
    "the constant": np.ma.masked,
}


@pytest.mark.parametrize("value", MASKED.values(), ids=MASKED)
def test_masked_arrays_are_refused_wherever_values_are_taken(open_replay, value):
    replay = open_replay(simple())
    plain = np.zeros(4, np.float32)
    row = {"obs": plain, "action": 1, "reward": 0.0, "terminated": True, "truncated": False}
    with replay.actor("s") as actor, replay.learner("t", batch_size=4) as learner:
        for column, given in (("obs", value), ("action", value), ("reward", value), ("terminated", value)):
            with pytest.raises(ColumnError, match=rf"column '{column}'.*masked array"):
                actor.append(**{**row, column: given})
        actor.append(**row)
        with pytest.raises(ColumnError, match=r"column 'obs'.*masked array"):
            actor.end(obs=value)
        with pytest.raises(ColumnError, match=r"priority.*masked array"):
            actor.end(obs=plain, priority=value)
        actor.end(obs=plain)
        keys = actor.flush()
        assert len(keys) == 1
        with pytest.raises(ColumnError, match=r"priorities.*masked array"):
            learner.update_priorities(np.repeat(keys, 4), value)
        with pytest.raises(ColumnError, match=r"keys: .*masked array"):
            learner.update_priorities(value, np.ones(4))
        with pytest.raises(ColumnError, match=r"tensor 'w'.*masked array"):
            replay.parameters.publish({"w": value})


def test_masked_final_observations_are_refused(open_replay):
    replay = open_replay(simple())
    with replay.actor("s", num_envs=2, autoreset="same_step") as actor:
        plain = np.zeros((2, 4), np.float32)
        row = {"obs": plain, "action": [1, 2], "reward": np.zeros(2), "truncated": np.zeros(2, np.bool_)}
        for final in (np.ma.masked_array(plain, plain == 0), [np.ma.masked_all(4), None]):
            with pytest.raises(ColumnError, match=r"final obs.*masked array"):
                actor.append(**row, terminated=np.array([True, False]), final=final)
        actor.append(**row, terminated=np.array([True, False]), final=[plain[0], None])


@pytest.mark.parametrize(
    "priority",
    [np.full((100, 100), 1.5), np.array(["a" * 5000]), ["x" * 5000], np.ones(7), "y" * 5000],
    ids=["shape", "string", "list", "count", "text"],
)
def test_the_error_of_a_priority_is_short(open_replay, priority):
    replay = open_replay(simple())
    with replay.actor("s") as actor:
        actor.append(obs=np.zeros(4), action=1, reward=0.0, terminated=True, truncated=False)
        with pytest.raises(ColumnError, match=r"priority") as caught:
            actor.end(obs=np.zeros(4), priority=priority)
        assert len(str(caught.value)) < 250
        assert "\n" not in str(caught.value)
        actor.end(obs=np.zeros(4), priority=1.0)
