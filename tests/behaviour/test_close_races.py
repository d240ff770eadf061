"""close() from another thread at any moment of a call: the call ends with Closed, and with nothing else."""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import pytest
from feeding import feed
from serving import PATIENCE
from specs import simple

import netreplay
from netreplay import Closed

ROUNDS = 4
ROW = {"obs": np.zeros(4), "action": 0, "reward": 0.0, "terminated": False, "truncated": False}


def ended_by(replay, call, after):
    """What a thread that repeats `call` ends with when the replay is closed `after` seconds later."""
    found = []

    def repeat():
        try:
            while True:
                call()
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=repeat) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(after)
    with contextlib.suppress(netreplay.Timeout):  # of an actor that appended until the end: not all is acknowledged
        replay.close()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return found


@pytest.mark.parametrize("what", ["append", "flush", "counters", "sample", "prefetch", "update"])
def test_a_call_that_meets_close_ends_with_closed(open_replay, what):
    for round_number in range(ROUNDS):
        replay = open_replay(simple())
        actor = replay.actor("s")
        keys = feed(actor, 20)
        learner = replay.learner("t", batch_size=16, prefetch=2 if what == "prefetch" else 0)
        calls = {
            "append": lambda actor=actor: actor.append(**ROW),
            "flush": lambda actor=actor: (actor.append(**ROW), actor.flush()),
            "counters": actor.counters,
            "sample": learner.sample,
            "prefetch": learner.sample,
            "update": lambda learner=learner, keys=keys: learner.update_priorities(keys, np.ones(20)),
        }
        found = ended_by(replay, calls[what], after=0.005 * (round_number % 4))
        assert [type(error) for error in found] == [Closed, Closed], found
