"""Limiters: what waits, why, and what sets it free; limits that change while callers wait. Cases 15, 16, 17."""

from __future__ import annotations

import contextlib
import math
import threading
import time

import numpy as np
import pytest
from feeding import feed
from serving import PATIENCE, wait_until
from specs import simple

import netreplay
from netreplay.errors import BadCountError, BadLimitsError, Closed, LimiterTimeout, SpecError, Status


def ratio(samples_per_insert, error_buffer, **options):
    limiter = (
        f"""limiter = {{kind = "ratio", samples_per_insert = {samples_per_insert}, error_buffer = {error_buffer}}}"""
    )
    return simple(table=limiter, **options)


def info(replay):
    return replay.table("t").info()


def test_draws_wait_for_inserts_and_say_with_which_numbers(open_replay):
    replay = open_replay(ratio(1.5, 4, min_size=4))  # least 2, most 10
    with replay.actor("s") as actor, replay.learner("t", batch_size=3, timeout=PATIENCE) as learner:
        feed(actor, 4)
        learner.sample()
        with pytest.raises(
            LimiterTimeout, match="limiter: 6 samples would be drawn, 4 are allowed by the inserts"
        ) as caught:
            learner.sample(timeout=0.2)
        assert (caught.value.have, caught.value.need, caught.value.table) == (6, 4, "t")
        feed(actor, 2)
        assert len(learner.sample()) == 3  # 6 x 1.5 - 6 = 3 >= 2


def test_inserts_wait_for_samples_and_flush_says_with_which_numbers(open_replay):
    replay = open_replay(ratio(2, 4, min_size=2))  # least 0, most 8
    with replay.actor("s") as actor, replay.learner("t", batch_size=4, timeout=PATIENCE) as learner:
        feed(actor, 4)
        for i in range(2):
            value = np.zeros(4, np.float32)
            actor.append(obs=value, action=i, reward=0.0, terminated=True, truncated=False)
            actor.end(obs=value)
        with pytest.raises(
            LimiterTimeout, match="limiter: 0 samples were taken, 2 must have been before the next insert"
        ) as caught:
            actor.flush(timeout=0.2)
        assert (caught.value.reason, caught.value.have, caught.value.need) == ("limiter", 0, 2)
        assert info(replay).size == 4
        learner.sample()
        assert len(actor.flush(timeout=PATIENCE)) == 2
        assert (info(replay).inserted, info(replay).sampled) == (6, 4)


def test_an_append_blocks_only_when_credits_end_and_says_why(open_replay):
    replay = open_replay(ratio(1, 2, store="in_flight = 8"))  # least -1, most 3
    with replay.learner("t", batch_size=1, timeout=PATIENCE) as learner:
        actor = replay.actor("s", timeout=0.3)
        appended = append_until_it_waits(actor)
        assert 4 < appended < 40
        assert info(replay).size == 3
        for _ in range(appended - 4):  # append n makes item n - 1
            learner.sample()
        actor.flush(timeout=PATIENCE)
        assert info(replay).inserted == appended - 1
        actor.close()


def append_until_it_waits(actor):
    value = np.zeros(4, np.float32)
    for appended in range(100):
        try:
            actor.append(obs=value, action=0, reward=0.0, terminated=False, truncated=False)
        except LimiterTimeout as error:
            if "samples were taken" in str(error):
                return appended
            raise
    raise AssertionError("it never waited")


@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize(("batch", "buffer"), [(4, 8), (8, 8), (1, 4), (12, 16)])
def test_one_thread_alternates_inserts_and_samples_at_the_ratio(open_replay, prefetch, batch, buffer):
    replay = open_replay(ratio(4, buffer))
    with (
        replay.actor("s") as actor,
        replay.learner("t", batch_size=batch, prefetch=prefetch, timeout=PATIENCE) as learner,
    ):
        taken = 0
        begin = time.monotonic()
        for i in range(60):
            feed(actor, 1, first=i)
            while taken + batch <= 4 * i:
                learner.sample()
                taken += batch
        assert time.monotonic() - begin < PATIENCE
        assert info(replay).inserted == 60
        wait_until(lambda: info(replay).sampled == taken, "all that was taken is counted")


def test_what_is_fetched_ahead_and_not_taken_holds_no_insert_back(open_replay):
    replay = open_replay(ratio(1, 8, min_size=8))  # least 0, most 16
    with replay.actor("s") as actor:
        feed(actor, 12)
        learner = replay.learner("t", batch_size=2, prefetch=5, timeout=PATIENCE)
        learner.sample()
        wait_until(lambda: info(replay).reserved == 10, "five batches are reserved")
        feed(actor, 6)  # 18 - 2 = 16: only what was taken counts
        with pytest.raises(LimiterTimeout, match="2 samples were taken, 3 must have been"):
            feed_one_timing_out(actor)
        learner.close()  # refunds
        wait_until(lambda: info(replay).reserved == 0, "they are given back")
        assert info(replay).sampled == 2
        with replay.learner("t", batch_size=16, timeout=PATIENCE) as other:
            other.sample()
        actor.flush(timeout=PATIENCE)


def feed_one_timing_out(actor):
    value = np.zeros(4, np.float32)
    actor.append(obs=value, action=0, reward=0.0, terminated=True, truncated=False)
    actor.end(obs=value)
    actor.flush(timeout=0.2)


def test_an_actor_and_a_learner_in_two_threads_keep_the_ratio(open_replay):
    replay = open_replay(ratio(2, 20, min_size=10))
    errors, stop = [], threading.Event()

    def act():
        try:
            with replay.actor("s", timeout=PATIENCE) as actor:
                for i in range(300):
                    feed(actor, 1, first=i)
        except Exception as error:
            errors.append(error)

    acting = threading.Thread(target=act)
    acting.start()
    taken = 0
    with replay.learner("t", batch_size=5, prefetch=2, timeout=PATIENCE) as learner:
        while acting.is_alive() or taken < 2 * 300 - 20:
            if taken + 5 > 2 * 300:
                break
            learner.sample()
            taken += 5
            now = info(replay)
            assert 0 <= 2 * now.inserted - now.sampled <= 40 + 2
    acting.join(PATIENCE)
    stop.set()
    assert errors == []
    assert info(replay).inserted == 300


def test_closing_ends_inserts_that_wait(open_replay):
    replay = open_replay(ratio(1, 1))
    actor = replay.actor("s")
    raised = []

    def wait():
        try:
            feed(actor, 5)
        except Exception as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    begin = time.monotonic()
    with contextlib.suppress(LimiterTimeout):  # what was not stored
        replay.close()
    waiting.join(PATIENCE)
    assert time.monotonic() - begin < 2.0
    assert isinstance(raised[0], Closed)


# ---- live change: case 17 ----


def test_waiting_samples_notice_a_lower_minimum(open_replay):
    replay = open_replay(simple(min_size=100))
    found = []
    with replay.actor("s") as actor, replay.learner("t", batch_size=4, timeout=PATIENCE) as learner:
        feed(actor, 3)
        waiting = threading.Thread(target=lambda: found.append(learner.sample()))
        waiting.start()
        wait_until(waiting.is_alive, "it waits")
        limits = replay.table("t").configure(min_size=3)
        waiting.join(PATIENCE)
        assert len(found) == 1
        assert limits.min_size == 3
        assert info(replay).limits == limits


def test_waiting_inserts_notice_a_larger_buffer(open_replay):
    replay = open_replay(ratio(1, 2))
    with replay.actor("s") as actor:
        feed(actor, 3)
        with pytest.raises(LimiterTimeout):
            feed_one_timing_out(actor)
        limits = replay.table("t").configure(error_buffer=10)
        assert (limits.least, limits.most, limits.error_buffer) == (-9, 11, 10)
        assert len(actor.flush(timeout=PATIENCE)) == 1
        replay.table("t").configure(samples_per_insert=0)
        feed(actor, 40)
        assert info(replay).size == 44


def test_every_limit_changes_alone_and_none_means_unchanged(open_replay):
    replay = open_replay(simple(min_size=5))
    table = replay.table("t")
    before = table.configure()
    assert before == (5, 0.0, 0.0, 0.0, None, None, None)
    assert table.configure(max_sampled=3) == before._replace(max_sampled=3)
    assert table.configure(max_age=1.5).max_age == 1.5
    assert table.configure(max_lag=0).max_lag == 0
    now = table.configure(samples_per_insert=2, error_buffer=3)
    assert now == (5, 2.0, 7.0, 13.0, 3, 1.5, 0)
    assert table.configure(min_size=6)[:4] == (6, 2.0, 9.0, 15.0)
    assert table.configure(samples_per_insert=1)[:4] == (6, 1.0, 3.0, 9.0)
    assert table.configure(max_sampled=math.inf, max_age=math.inf, max_lag=math.inf)[4:] == (None, None, None)
    assert table.info().limits == table.configure()


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ({"min_size": -1}, "table.t.min_size: -1 is not a whole number between 0 and 1000"),
        ({"min_size": 1001}, "table.t.min_size: 1001 is not a whole number between 0 and 1000"),
        ({"min_size": 2.5}, "table.t.min_size: 2.5 is not a whole number"),
        ({"min_size": True}, "table.t.min_size: True is not a whole number"),
        ({"samples_per_insert": math.nan}, "table.t.samples_per_insert: nan is not a number"),
        ({"samples_per_insert": -0.5}, "table.t.samples_per_insert: -0.5 is not a number between 0"),
        ({"error_buffer": 0.5}, "table.t.error_buffer: 0.5 is below 1, the larger of 1 and samples_per_insert"),
        ({"samples_per_insert": 4, "error_buffer": 3}, "table.t.error_buffer: 3 is below 4"),
        ({"error_buffer": math.inf}, "table.t.error_buffer: inf is not a number"),
        ({"size": 4}, "table.t.size: 4 is for queues and stacks; this limiter is of kind min_size"),
        ({"max_sampled": 0}, "table.t.max_sampled: 0 is not a whole number between 1"),
        ({"max_age": 0}, "table.t.max_age: 0 is not above 0"),
        ({"max_age": "1 h"}, "table.t.max_age: '1 h' is not a number"),
        ({"max_lag": -1}, "table.t.max_lag: -1 is not a whole number between 0"),
    ],
)
def test_a_limit_that_cannot_be_is_refused_by_name(open_replay, wanted, complaint):
    replay = open_replay(simple())
    before = info(replay).limits
    with pytest.raises(SpecError) as caught:
        replay.table("t").configure(**wanted)
    assert complaint in str(caught.value)
    field = next(iter(wanted)) if len(wanted) == 1 else "error_buffer"
    assert caught.value.path == f"table.t.{field}"
    assert info(replay).limits == before


@pytest.mark.parametrize("wanted", [{"samples_per_insert": 2}, {"error_buffer": 5}])
def test_what_contradicts_the_limits_in_force_changes_nothing(open_replay, wanted):
    replay = open_replay(simple())
    before = info(replay).limits
    with pytest.raises(
        BadLimitsError, match=r"configure table 't', (samples_per_insert = 2|error_buffer = 5)"
    ) as caught:
        replay.table("t").configure(**wanted)
    assert (caught.value.status, caught.value.table, caught.value.limits) == (Status.BAD_LIMITS, "t", wanted)
    assert info(replay).limits == before


def test_a_ratio_above_its_error_buffer_is_refused(open_replay):
    replay = open_replay(ratio(1, 2))
    with pytest.raises(BadLimitsError):
        replay.table("t").configure(samples_per_insert=8)
    assert info(replay).limits[:4] == (1, 1.0, -1.0, 3.0)


def test_a_batch_that_could_wait_for_ever_is_refused_with_the_arithmetic(open_replay):
    replay = open_replay(ratio(3, 4))  # least -1, most 7
    replay.learner("t", batch_size=6).close()
    with pytest.raises(
        BadCountError, match=r"batch_size: 7 could wait for ever: .* at most 6 are sure to come"
    ) as caught:
        replay.learner("t", batch_size=7)
    assert (caught.value.field, caught.value.value) == ("batch_size", 7)
    replay.table("t").configure(error_buffer=8)
    replay.learner("t", batch_size=14).close()


# ---- queues and stacks ----


def queue(kind, size, **options):
    sampler = {"queue": "fifo", "stack": "lifo"}[kind]
    return simple(sampler=sampler, table=f'limiter = {{kind = "{kind}", size = {size}}}', **options)


def test_a_queue_gives_each_item_once_in_order(open_replay):
    replay = open_replay(queue("queue", 6))
    with replay.actor("s") as actor, replay.learner("t", batch_size=2, timeout=PATIENCE) as learner:
        keys = feed(actor, 6)
        with pytest.raises(LimiterTimeout, match="0 samples were taken, 1 must have been"):
            feed_one_timing_out(actor)
        for first in (0, 2):
            assert learner.sample().keys.tolist() == keys[first : first + 2].tolist()
        seventh = actor.flush(timeout=PATIENCE)
        more = feed(actor, 3, first=10)
        rest = [*keys[4:].tolist(), *seventh.tolist(), *more.tolist()]
        for first in (0, 2, 4):
            assert learner.sample().keys.tolist() == rest[first : first + 2]
        with pytest.raises(LimiterTimeout):
            learner.sample(timeout=0.1)
        wait_until(lambda: info(replay).size == 0, "what was taken has left")
        assert (info(replay).inserted, info(replay).sampled) == (10, 10)


def test_a_stack_gives_the_newest_first(open_replay):
    replay = open_replay(queue("stack", 5))
    with replay.actor("s") as actor, replay.learner("t", batch_size=1, timeout=PATIENCE) as learner:
        keys = feed(actor, 3).tolist()
        assert learner.sample().keys.tolist() == keys[2:]
        fourth = feed(actor, 1, first=9).tolist()
        assert [learner.sample().keys.tolist() for _ in range(3)] == [fourth, keys[1:2], keys[:1]]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_queue_between_two_threads_loses_and_repeats_nothing(open_replay, prefetch):
    replay = open_replay(queue("queue", 8))
    written, read = [], []

    def act():
        with replay.actor("s", timeout=PATIENCE) as actor:
            for i in range(100):
                written.extend(feed(actor, 2, first=i).tolist())

    acting = threading.Thread(target=act)
    acting.start()
    with replay.learner("t", batch_size=4, prefetch=prefetch, timeout=PATIENCE) as learner:
        while len(read) < 200:
            read.extend(learner.sample().keys.tolist())
    acting.join(PATIENCE)
    assert read == written


def test_a_refunded_item_of_a_queue_is_given_again(open_replay):
    replay = open_replay(queue("queue", 8))
    with replay.actor("s") as actor:
        keys = feed(actor, 4)
        learner = replay.learner("t", batch_size=1, prefetch=2, timeout=PATIENCE)
        assert learner.sample().keys.tolist() == keys[:1].tolist()
        wait_until(lambda: info(replay).reserved == 2, "two are ahead")
        learner.close()
        with replay.learner("t", batch_size=3, timeout=PATIENCE) as other:
            assert other.sample().keys.tolist() == keys[1:].tolist()


def test_the_size_of_a_queue_changes_live(open_replay):
    replay = open_replay(queue("queue", 2))
    table = replay.table("t")
    with replay.actor("s") as actor:
        feed(actor, 2)
        with pytest.raises(LimiterTimeout):
            feed_one_timing_out(actor)
        assert table.configure(size=5).most == 5
        actor.flush(timeout=PATIENCE)
        feed(actor, 2)
        with pytest.raises(BadCountError, match="the queue 't' holds 5 items at most; lower batch_size or raise size"):
            replay.learner("t", batch_size=6)
        replay.learner("t", batch_size=5).close()
    for wanted in ({"min_size": 2}, {"samples_per_insert": 2}, {"error_buffer": 4}, {"max_sampled": 2}):
        with pytest.raises(SpecError, match=r"cannot be changed of a queue, whose items are drawn once each; size can"):
            table.configure(**wanted)


def test_what_is_deleted_or_reset_takes_no_place_of_a_queue(open_replay):
    replay = open_replay(queue("queue", 3))
    with replay.actor("s") as actor:
        for i in range(4):
            keys = feed(actor, 3, first=i)
            assert replay.table("t").delete(keys).deleted == 3
        feed(actor, 3)
        replay.table("t").reset()
        feed(actor, 3)
        with pytest.raises(LimiterTimeout):
            feed_one_timing_out(actor)
        replay.table("t").reset()


def test_what_was_taken_counts_although_its_client_closes_at_once(start_server, resources):
    """The commit is told before the session ends: each item of a queue goes to one client."""
    table = 'sampler = "fifo"\nlimiter = {kind = "queue", size = 50}'
    server = start_server(simple().replace('sampler = "prioritized"', table))
    feeder = resources.enter_context(netreplay.connect(server.url, auth="off", timeout=20))
    with feeder.actor("s") as actor:
        feed(actor, 20)
        seen = []
        for _ in range(10):
            with netreplay.connect(server.url, auth="off", timeout=20) as replay:
                seen.append(int(replay.learner("t", batch_size=1, timeout=20).sample().keys[0]))
        assert len(set(seen)) == 10
        wait_until(lambda: feeder.table("t").info().sampled == 10, "ten commits")
