"""Waiting: blocking calls end in time and say why they waited; what is not taken does not count. Cases 15, 16, 18."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from feeding import feed
from serving import PATIENCE, wait_until
from specs import simple

import netreplay
from netreplay.errors import BadCountError, Closed, EmptyTimeout, LimiterTimeout, NoSetError, NoStoreError, NoTableError


def test_the_limiter_is_named_with_its_numbers(open_replay):
    replay = open_replay(simple(min_size=1000))
    with replay.actor("s") as actor, replay.learner("t", batch_size=4) as learner:
        feed(actor, 120)
        begin = time.monotonic()
        with pytest.raises(LimiterTimeout, match=r"limiter: 120 of 1000 items in table 't'") as caught:
            learner.sample(timeout=0.2)
        assert 0.15 < time.monotonic() - begin < PATIENCE
        assert (caught.value.reason, caught.value.have, caught.value.need) == ("limiter", 120, 1000)
        assert isinstance(caught.value, netreplay.Timeout)
        assert isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize("sampler", ["prioritized", "uniform", "fifo"])
def test_an_empty_table_is_a_wait_with_a_reason(open_replay, sampler):
    replay = open_replay(simple(sampler=sampler, min_size=0))
    with replay.learner("t", batch_size=4) as learner, pytest.raises(netreplay.Timeout) as caught:
        learner.sample(timeout=0.3)
    assert caught.value.reason in ("limiter", "empty")
    assert "table 't'" in str(caught.value)


def test_a_waiting_sample_is_woken_by_the_insert(open_replay):
    replay = open_replay(simple(min_size=3))
    found = []
    with replay.learner("t", batch_size=4, timeout=PATIENCE) as learner, replay.actor("s") as actor:
        waiting = threading.Thread(target=lambda: found.append(learner.sample()))
        waiting.start()
        feed(actor, 2)
        assert not found
        feed(actor, 1)
        waiting.join(PATIENCE)
        assert len(found) == 1


def test_a_waiting_sample_is_woken_by_an_update(open_replay):
    replay = open_replay(simple())
    found = []
    with replay.learner("t", batch_size=4, timeout=PATIENCE) as learner, replay.actor("s") as actor:
        keys = feed(actor, 2, 0.0)
        with pytest.raises(EmptyTimeout):
            learner.sample(timeout=0.1)
        waiting = threading.Thread(target=lambda: found.append(learner.sample()))
        waiting.start()
        with replay.learner("t", batch_size=4) as other:
            other.update_priorities(keys, [0.0, 2.0])
        waiting.join(PATIENCE)
        assert set(found[0].keys.tolist()) == {int(keys[1])}


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_one_thread_may_alternate_inserts_and_samples(open_replay, prefetch):
    replay = open_replay(simple(min_size=10))
    with replay.actor("s") as actor, replay.learner("t", batch_size=8, prefetch=prefetch, timeout=PATIENCE) as learner:
        feed(actor, 10)
        for i in range(50):
            assert len(learner.sample()) == 8
            feed(actor, 1, first=i)
        # Whether a batch was taken travels with a later datagram.
        wait_until(lambda: replay.table("t").info().sampled == 50 * 8, "all that was taken is counted")


def test_prefetched_batches_count_only_when_taken(open_replay):
    replay = open_replay(simple())
    with replay.actor("s") as actor:
        feed(actor, 10)
        learner = replay.learner("t", batch_size=8, prefetch=3, timeout=PATIENCE)
        learner.sample()
        wait_until(lambda: replay.table("t").info().reserved == 24, "three batches are reserved")
        assert replay.table("t").info().sampled == 8
        learner.close()
        wait_until(lambda: replay.table("t").info().reserved == 0, "they are given back")
        info = replay.table("t").info()
        assert (info.sampled, info.leased) == (8, 0)


def test_a_timed_out_prefetch_goes_on(open_replay):
    replay = open_replay(simple(min_size=2))
    with replay.actor("s") as actor, replay.learner("t", batch_size=8, prefetch=2) as learner:
        with pytest.raises(LimiterTimeout):
            learner.sample(timeout=0.1)
        feed(actor, 2)
        assert len(learner.sample(timeout=PATIENCE)) == 8


def test_the_learner_is_an_iterator(open_replay):
    replay = open_replay(simple())
    with replay.actor("s") as actor, replay.learner("t", batch_size=8, prefetch=2, timeout=PATIENCE) as learner:
        feed(actor, 5)
        for number, batch in enumerate(learner):
            assert len(batch) == 8
            if number == 20:
                break


@pytest.mark.parametrize("what", ["learner", "replay"])
def test_close_from_another_thread_ends_a_wait_within_a_second(open_replay, what):
    replay = open_replay(simple(min_size=10))
    learner = replay.learner("t", batch_size=4)
    raised = []

    def wait():
        try:
            learner.sample(timeout=60)
        except Exception as error:
            raised.append((error, time.monotonic()))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    begin = time.monotonic()
    (learner if what == "learner" else replay).close()
    waiting.join(PATIENCE)
    error, when = raised[0]
    assert isinstance(error, Closed)
    assert when - begin < 1.0


def test_after_close_everything_is_a_typed_error(open_replay):
    replay = open_replay(simple())
    actor, learner = replay.actor("s"), replay.learner("t", batch_size=4)
    feed(actor, 3)
    replay.close()
    replay.close()
    row = {"obs": np.zeros(4), "action": 0, "reward": 0.0, "terminated": False, "truncated": False}
    for call in (
        lambda: actor.append(**row),
        actor.flush,
        actor.counters,
        learner.sample,
        lambda: learner.update_priorities([1], [1.0]),
        replay.tables,
        replay.ping,
        replay.counters,
        lambda: replay.actor("s"),
        lambda: replay.learner("t", batch_size=1),
        replay.parameters.fetch,
        lambda: replay.parameters.publish({}),
    ):
        with pytest.raises(Closed):
            call()
    actor.close()
    learner.close()


def test_names_that_do_not_exist_are_answered_with_those_that_do(open_replay):
    replay = open_replay(simple())
    with pytest.raises(NoStoreError, match="store 'x': the server has no such store; it has: s"):
        replay.actor("x")
    with pytest.raises(NoTableError, match="table 'x': the server has no such table; it has: t"):
        replay.learner("x", batch_size=1)
    with pytest.raises(NoTableError, match="it has: t"):
        replay.table("x")
    with pytest.raises(NoSetError, match="parameters 'x': the server has no such set; it has: default"):
        replay.parameters["x"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", 0), ("batch_size", -1), ("batch_size", 1.5), ("batch_size", True), ("prefetch", -1)],
)
def test_sizes_that_cannot_be_are_refused(open_replay, name, value):
    replay = open_replay(simple())
    with pytest.raises(BadCountError, match=f"{name}: {value!r} is not a whole number"):
        replay.learner("t", **{"batch_size": 4, name: value})


def test_accepted_data_is_safe_when_the_actor_is_closed(open_replay):
    replay = open_replay(simple())
    with replay.actor("s") as actor:
        for i in range(100):
            actor.append(obs=np.zeros(4), action=i, reward=0.0, terminated=False, truncated=False)
    assert replay.table("t").info().size == 99


def test_many_threads_may_share_a_replay(open_replay):
    replay = open_replay(simple(capacity=100_000))
    errors = []

    def work(number):
        try:
            with (
                replay.actor("s") as actor,
                replay.learner("t", batch_size=16, prefetch=number % 3, timeout=PATIENCE) as learner,
            ):
                for i in range(30):
                    keys = feed(actor, 3, first=i)
                    learner.update_priorities(keys, [1.0, 2.0, 3.0])
                    learner.sample()
                    replay.tables()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE * 3)
    assert errors == []
    assert replay.table("t").info().size == 6 * 90


def test_a_ping_and_counters_are_there(open_replay, transport):
    replay = open_replay(simple())
    ping = replay.ping(100)
    assert 0 <= ping.server <= ping.round_trip < PATIENCE
    counters = replay.counters()
    assert (counters.datagrams_sent > 0) == (transport != "local")
