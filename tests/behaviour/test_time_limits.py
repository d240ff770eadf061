"""A time limit is kept, whatever waits: neither early nor more than some milliseconds late; 0 tries once."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest
from feeding import feed
from specs import simple

import netreplay
from netreplay.errors import BadConfigError, BadCountError

LIMITS = [0, 0.01, 0.03, 0.05, 0.1, 0.17]
LATE = 0.02


def assert_kept(call, limits=LIMITS):
    """The best of some tries: another process may have the processor meanwhile."""
    for limit in limits:
        late = []
        for _ in range(4):
            begin = time.monotonic()
            with pytest.raises(netreplay.Timeout):
                call(limit)
            late.append(time.monotonic() - begin - limit)
            if late[-1] < LATE:
                break
        assert min(late) > -0.002, (limit, late)
        assert min(late) < LATE, (limit, late)


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_sample(open_replay, prefetch):
    replay = open_replay(simple(min_size=10))
    with replay.learner("t", batch_size=4, prefetch=prefetch) as learner:
        assert_kept(lambda limit: learner.sample(timeout=limit))
    assert_kept(lambda limit: own_limit(replay, prefetch, limit), [0.03, 0.1])


def own_limit(replay, prefetch, limit):
    with replay.learner("t", batch_size=4, prefetch=prefetch, timeout=limit) as learner:
        learner.sample()


def test_everything_that_asks_a_server_that_is_mute(start_server):
    server = start_server(simple())
    replay = netreplay.connect(server.url, auth="off")
    actor, learner = replay.actor("s"), replay.learner("t", batch_size=4)
    keys = feed(actor, 5)
    server.stop()
    try:
        for call in (
            lambda limit: replay.ping(timeout=limit),
            lambda limit: replay.tables(limit),
            lambda limit: replay.table("t").info(limit),
            lambda limit: replay.parameters.fetch(timeout=limit),
            lambda limit: replay.parameters.publish({"x": np.zeros(3)}, timeout=limit),
            lambda limit: learner.update_priorities(keys, np.ones(5), timeout=limit),
            lambda limit: learner.sample(timeout=limit),
        ):
            assert_kept(call)
        actor.append(obs=np.zeros(4), action=0, reward=0.0, terminated=True, truncated=False)
        actor.end(obs=np.zeros(4))
        assert_kept(lambda limit: actor.flush(limit))
        assert_kept_append(replay)
        begin = time.monotonic()
        with pytest.raises(netreplay.Timeout):
            actor.close(0.1)
        assert time.monotonic() - begin < 0.1 + 3 * LATE
    finally:
        server.go_on()
    replay.close()


def assert_kept_append(replay):
    row = {"obs": np.zeros(4), "action": 0, "reward": 0.0, "terminated": False, "truncated": False}
    for limit in (0, 0.03, 0.1):
        actor = replay.actor("s", timeout=limit)

        def fill(_limit, actor=actor):
            while True:
                actor.append(**row)

        with pytest.raises(netreplay.Timeout):
            fill(limit)
        assert_kept(lambda _, actor=actor: actor.append(**row), [limit])


def test_connect():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", 0))
        url = f"udp://127.0.0.1:{mute.getsockname()[1]}"
        assert_kept(lambda limit: netreplay.connect(url, auth="off", timeout=limit))


def test_a_call_that_waits_for_another_keeps_its_limit(open_replay):
    replay = open_replay(simple(min_size=10))
    learners = [replay.learner("t", batch_size=4) for _ in range(3)]
    late = []

    def wait(learner):
        begin = time.monotonic()
        with pytest.raises(netreplay.Timeout):
            learner.sample(timeout=0.12)
        late.append(time.monotonic() - begin - 0.12)

    threads = [threading.Thread(target=wait, args=(learner,)) for learner in learners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(late) == 3
    assert min(late) < LATE


BAD = [float("nan"), "x", -1, -0.001, -float("inf"), True, [1.0], 1j, np.array([1.0, 2.0]), b"1"]


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_limit_that_is_none_is_refused_and_named(open_replay, bad):
    replay = open_replay(simple())
    with replay.actor("s") as actor, replay.learner("t", batch_size=4) as learner:
        keys = feed(actor, 3)
        for call in (
            lambda: replay.actor("s", timeout=bad),
            lambda: replay.learner("t", batch_size=4, timeout=bad),
            lambda: learner.sample(timeout=bad),
            lambda: learner.sample(bad),
            lambda: learner.update_priorities(keys, [1.0] * 3, timeout=bad),
            lambda: actor.flush(bad),
            lambda: actor.close(bad),
            lambda: replay.tables(bad),
            lambda: replay.table("t").info(bad),
            lambda: replay.ping(0, bad),
            lambda: replay.parameters.fetch(timeout=bad),
            lambda: replay.parameters.publish({}, timeout=bad),
            lambda: netreplay.connect("local:", spec=replay.spec, timeout=bad),
        ):
            with pytest.raises(BadConfigError, match=r"timeout: .* is not a number of seconds >= 0") as caught:
                call()
            assert caught.value.field == "timeout"
            assert len(str(caught.value)) < 200
        assert len(learner.sample(timeout=np.float32(5))) == 4


@pytest.mark.parametrize("limit", [1, 10**400, float("inf"), 1e300, np.float64(3), np.int32(3)])
def test_large_limits_and_numpy_numbers_are_limits(open_replay, limit):
    replay = open_replay(simple())
    with replay.actor("s", timeout=limit) as actor:
        keys = feed(actor, 3)
        assert len(actor.flush(limit)) == 0
        with replay.learner("t", batch_size=4, timeout=limit) as learner:
            learner.update_priorities(keys, [1.0, 2.0, 3.0], timeout=limit)
            assert len(learner.sample(timeout=limit)) == 4
        replay.tables(limit)
        replay.ping(0, limit)


@pytest.mark.parametrize("bad", [-1, 1.0, True, "x", None, 2**64, float("nan")], ids=repr)
def test_a_ping_of_an_impossible_size_is_refused(open_replay, bad):
    replay = open_replay(simple())
    with pytest.raises(BadCountError, match=r"payload_bytes: .* is not a whole number between 0 and \d+"):
        replay.ping(bad)


def test_a_ping_is_as_large_as_a_datagram_takes_and_no_larger(open_replay, transport):
    replay = open_replay(simple())
    if transport == "local":
        replay.ping(10**7)
        return
    most = replay.counters().max_datagram - 48
    before = replay.counters().bytes_sent
    replay.ping(most)
    assert replay.counters().bytes_sent - before == most + 48
    for larger in (most + 1, 10**7):
        with pytest.raises(BadCountError, match=rf"payload_bytes: {larger} is not a whole number between 0 and {most}"):
            replay.ping(larger)


@pytest.mark.parametrize("bad", [-1, float("nan"), "x", True, None, 17, 1j, np.ones(1000)], ids=lambda v: repr(v)[:9])
def test_a_beta_that_is_none_is_refused(open_replay, bad):
    replay = open_replay(simple())
    with replay.actor("s") as actor, replay.learner("t", batch_size=4, timeout=10) as learner:
        feed(actor, 3)
        batch = learner.sample()
        with pytest.raises(BadConfigError, match=r"beta: .* is not a number between 0 and 16") as caught:
            batch.weights(bad)
        assert caught.value.field == "beta"
        assert len(str(caught.value)) < 200
        with pytest.raises(BadConfigError, match=r"normalize: "):
            batch.weights(0.5, [bad])
        assert len(batch.weights(np.float32(0.5))) == 4


@pytest.mark.parametrize("name", ["batch_size", "prefetch"])
@pytest.mark.parametrize("bad", [-1, 1.0, True, "x", None, 2**24, float("nan")], ids=repr)
def test_a_learner_of_an_impossible_size_is_refused(open_replay, name, bad):
    replay = open_replay(simple())
    with pytest.raises(BadCountError, match=rf"{name}: .* is not a whole number between") as caught:
        replay.learner("t", **{"batch_size": 4, name: bad})
    assert caught.value.field == name


@pytest.mark.parametrize("bad", [0, -1, 1.0, True, "x", None, 2**24], ids=repr)
def test_an_actor_of_an_impossible_size_is_refused(open_replay, bad):
    replay = open_replay(simple())
    with pytest.raises(BadCountError, match=r"num_envs: .* is not a whole number between"):
        replay.actor("s", num_envs=bad)


@pytest.mark.parametrize(("rows", "most"), [(1, 32), (256, 32), (257, 16), (512, 16), (2048, 4), (8192, 1), (8193, 0)])
def test_prefetch_is_as_large_as_a_session_keeps_and_no_larger(open_replay, transport, rows, most):
    replay = open_replay(simple(capacity=100, table="leases = 40000"))
    with replay.actor("s") as actor:
        feed(actor, 10)
    with replay.learner("t", batch_size=rows, prefetch=most, timeout=20) as learner:
        for _ in range(3):
            batch = learner.sample()
            assert (batch["obs"][:, 0] == batch["action"]).all()
            assert len(batch) == rows
    if transport != "local":
        with pytest.raises(
            BadCountError, match=rf"prefetch: {most + 1} batches .* of this batch_size is {most}"
        ) as caught:
            replay.learner("t", batch_size=rows, prefetch=most + 1)
        assert (caught.value.field, caught.value.value) == ("prefetch", most + 1)
    else:
        replay.learner("t", batch_size=rows, prefetch=most + 1).close()


@pytest.mark.parametrize("rows", [2047, 2049, 5000, 20_000])
def test_large_batches_need_no_prefetch_to_be_whole(open_replay, rows):
    replay = open_replay(simple(capacity=100, table="leases = 40000"))
    with replay.actor("s") as actor:
        feed(actor, 10)
    with replay.learner("t", batch_size=rows, timeout=20) as learner:
        for _ in range(2):
            batch = learner.sample()
            assert (batch["obs"][:, 0] == batch["action"]).all()
            assert (batch.probabilities == 0.1).all()
            assert len(batch) == rows
