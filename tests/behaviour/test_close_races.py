"""close() and Ctrl-C at any moment of a call: it ends with Closed or KeyboardInterrupt, and nothing else is harmed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
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


def began(call):
    """A thread in `call`, which waits for the server, and the list that gets what it ends with."""
    found = []

    def run():
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    assert not found
    return thread, found


def test_a_learner_closes_though_an_update_waits_for_a_server_that_is_mute(start_server):
    server = start_server(simple())
    with netreplay.connect(server.url, auth="off") as replay, replay.actor("s") as actor:
        learner = replay.learner("t", batch_size=4)
        keys = feed(actor, 5)
        server.stop()
        try:
            thread, found = began(lambda: learner.update_priorities(keys, np.ones(5), timeout=PATIENCE))
            begin = time.monotonic()
            learner.close()
            assert time.monotonic() - begin < 1
            thread.join(PATIENCE)
            assert [type(error) for error in found] == [Closed], found
        finally:
            server.go_on()
        with replay.learner("t", batch_size=4) as other:
            assert other.update_priorities(keys, np.ones(5)).applied == 5


def test_an_actor_is_told_a_version_though_its_flush_waits(start_server):
    """As `parameters.fetch` does in another thread, which would wait as long as the flush."""
    server = start_server(simple())
    with netreplay.connect(server.url, auth="off") as replay, replay.actor("s") as actor:
        keys = feed(actor, 5)
        server.stop()
        try:
            actor.append(**{**ROW, "terminated": True})
            actor.end(obs=ROW["obs"])
            thread, found = began(lambda: actor.flush(PATIENCE))
            begin = time.monotonic()
            actor.set_version(7)
            assert time.monotonic() - begin < 1
            assert thread.is_alive()
        finally:
            server.go_on()
        thread.join(PATIENCE)
        assert found[0].shape == (1,)
        feed(actor, 1)
        with replay.learner("t", batch_size=200, timeout=PATIENCE) as learner:
            batch = learner.sample()
            assert set(batch["version"][np.isin(batch.keys, keys)].tolist()) == {0}
            assert set(batch["version"].tolist()) == {0, 7}


PREFETCHED = """
import sys, netreplay
with netreplay.connect(sys.argv[1], auth="off") as replay:
    for _ in range(int(sys.argv[2])):
        with replay.learner("t", batch_size=10, prefetch=2, timeout=20) as learner:
            learner.sample()
        # Of the size that the batches under way had: an answer that still wrote there would be seen.
        size = 10 * learner._layout.row_bytes
        assert not any(any(bytearray(size)) for _ in range(8))
"""


def test_batches_under_way_at_a_close_are_not_written_to_afterwards(start_server):
    server = start_server(simple())
    with netreplay.connect(server.url, auth="off") as replay, replay.actor("s") as actor:
        feed(actor, 50)
    environment = {**os.environ, "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}
    command = [sys.executable, "-c", PREFETCHED, server.url, "5000"]
    subprocess.run(command, env=environment, timeout=6 * PATIENCE, check=True)


INTERRUPTED = """
import os, signal, sys, threading, time, random
import numpy as np, netreplay

with netreplay.connect(sys.argv[1], auth="off") as replay:
    sizes = (0, 10), (0, 700), (2, 10), (1, 300)
    learners = [replay.learner("t", batch_size=b, prefetch=p, timeout=20) for p, b in sizes]
    keys = learners[0].sample().keys
    calls = [learner.sample for learner in learners]
    calls += [lambda: learners[0].update_priorities(keys, np.ones(len(keys))), replay.tables, replay.ping]
    chance = random.Random(1)
    delivered = 0

    def handle(number, frame):
        global delivered
        delivered += 1
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)

    def interrupt():
        time.sleep(chance.random() * 0.004)
        os.kill(os.getpid(), signal.SIGINT)

    caught = 0
    for number in range(300):
        call = calls[number % len(calls)]
        thread = threading.Thread(target=interrupt)
        try:
            thread.start()
            while delivered <= number:  # Python drops what is raised in a finaliser
                batch = call()
                if call in calls[:4]:
                    assert (batch["obs"][:, 0] == batch["action"]).all()
        except KeyboardInterrupt:
            caught += 1
        thread.join()
    assert delivered == 300, delivered
    assert caught > 250, caught
    for learner in learners:
        assert len(learner.sample()) == learner.batch_size
        learner.close()
    end = time.monotonic() + 20
    while (info := replay.table("t").info()).leased or info.reserved:
        assert time.monotonic() < end, info
"""


def test_ctrl_c_in_the_middle_of_calls_leaves_all_usable(start_server):
    server = start_server(simple())
    with netreplay.connect(server.url, auth="off") as replay, replay.actor("s") as actor:
        feed(actor, 50)
    command = [sys.executable, "-c", INTERRUPTED, server.url]
    subprocess.run(command, env={**os.environ, "MALLOC_CHECK_": "3"}, timeout=6 * PATIENCE, check=True)
