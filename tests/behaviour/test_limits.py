"""What does not fit what the server has room for is refused where it is asked for, and says what to change."""

from __future__ import annotations

import numpy as np
import pytest
from specs import simple

from netreplay.errors import TooManyError


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
