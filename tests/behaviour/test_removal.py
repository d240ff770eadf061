"""Items that leave because a client says so: deletion, and reset of a table. Cases 10, 12, 13; semantics 3."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from feeding import counts, feed, see_all
from serving import PATIENCE, wait_until
from specs import simple

from netreplay.errors import ColumnError, LeavingTimeout, LimiterTimeout, Timeout


def info(replay):
    return replay.table("t").info()


@pytest.mark.parametrize("n", [1, 2, 3, 100])
@pytest.mark.parametrize("sampler", ["prioritized", "uniform", "fifo"])
def test_deleting_one_of_n_leaves_the_others(open_replay, n, sampler):
    replay = open_replay(simple(sampler=sampler))
    with replay.actor("s") as actor:
        keys = feed(actor, n)
    gone = int(keys[n // 2])
    result = replay.table("t").delete([gone])
    assert (result.deleted, result.stale, result.superseded, result.outcome.tolist()) == (1, 0, 0, [0])
    now = info(replay)
    assert (now.size, now.inserted, now.evicted_deleted, now.evicted_capacity) == (n - 1, n, 1, 0)
    if n > 1:
        with replay.learner("t", batch_size=n - 1) as learner:
            assert set(see_all(learner, n - 1)) == set(keys.tolist()) - {gone}


def test_each_key_is_told_its_outcome(open_replay):
    replay = open_replay(simple())
    with replay.actor("s") as actor:
        keys = feed(actor, 4)
    table = replay.table("t")
    assert table.delete([]).outcome.tolist() == []
    result = table.delete([keys[0], keys[2], keys[0], 12345, keys[2], keys[2]])
    assert result.outcome.tolist() == [3, 3, 0, 1, 3, 0]
    assert (result.deleted, result.stale, result.superseded) == (2, 1, 3)
    again = table.delete(keys)
    assert again.outcome.tolist() == [1, 0, 1, 0]
    assert (info(replay).size, info(replay).evicted_deleted, info(replay).stale) == (0, 4, 3)
    with pytest.raises(ColumnError, match="keys"):
        table.delete([1.5])


def test_thousands_of_keys_in_one_call(open_replay, rng):
    replay = open_replay(simple(capacity=5000))
    with replay.actor("s") as actor:
        keys = np.concatenate([feed(actor, 100, first=i) for i in range(0, 5000, 100)])
    chosen = rng.permutation(keys)[:3000]
    result = replay.table("t").delete(chosen)
    assert (result.deleted, result.stale) == (3000, 0)
    assert info(replay).size == 2000
    with replay.learner("t", batch_size=1000) as learner:
        for _ in range(10):
            assert not np.isin(learner.sample().keys, chosen).any()


def test_in_one_call_updates_apply_then_deletes(open_replay):
    replay = open_replay(simple())
    with replay.actor("s") as actor:
        keys = feed(actor, 4)
    with replay.learner("t", batch_size=4) as learner:
        result = learner.update_priorities(keys, [5.0, 6.0, -1.0, 7.0], delete=[keys[0], keys[2], keys[0]])
        assert result.outcome.tolist() == [0, 0, 2, 0]
        assert result.deleted.outcome.tolist() == [3, 0, 0]
        assert (result.deleted.deleted, info(replay).updated, info(replay).size) == (2, 3, 2)
        assert learner.update_priorities(keys, np.ones(4)).outcome.tolist() == [1, 0, 1, 0]
        assert learner.update_priorities([], []).deleted is None
        assert learner.update_priorities([], [], delete=keys).deleted.outcome.tolist() == [1, 0, 1, 0]


def test_a_batch_keeps_what_is_deleted_meanwhile(open_replay):
    replay = open_replay(simple(capacity=4))
    with replay.actor("s") as actor, replay.learner("t", batch_size=8, prefetch=1, timeout=PATIENCE) as learner:
        keys = feed(actor, 2)
        first = learner.sample()
        replay.table("t").delete(keys)
        feed(actor, 4, first=10)
        ahead = learner.sample()
        assert set(ahead.keys.tolist()) <= set(keys.tolist())
        assert set(first["obs"][:, 0].tolist()) | set(ahead["obs"][:, 0].tolist()) == {0.0, 1.0}
        wait_until(lambda: info(replay).leased <= 8, "only what is ahead is held")


def test_what_was_deleted_makes_room(open_replay):
    replay = open_replay(simple(capacity=3))
    with replay.actor("s") as actor:
        keys = feed(actor, 3)
        replay.table("t").delete(keys[1:])
        more = feed(actor, 2, first=3)
        assert (info(replay).size, info(replay).evicted_capacity) == (3, 0)
        assert set(more.tolist()).isdisjoint(keys.tolist())


# ---- reset ----


def test_a_reset_empties_the_table_and_counts_anew(open_replay):
    replay = open_replay(simple(min_size=5, capacity=3000))
    table = replay.table("t")
    with replay.actor("s") as actor, replay.learner("t", batch_size=8, timeout=PATIENCE) as learner:
        keys = np.concatenate([feed(actor, 100, priority=3.0, first=i) for i in range(0, 2500, 100)])
        batch = learner.sample()
        wait_until(lambda: info(replay).sampled == 8, "it is counted")
        table.reset()
        now = info(replay)
        assert (now.size, now.inserted, now.sampled, now.reserved, now.evicted_reset) == (0, 0, 0, 0, 2500)
        assert (now.max_priority, now.total) == (0, 0)
        result = learner.update_priorities(batch.keys, np.ones(8))
        assert result.stale + result.superseded == 8
        assert table.delete(keys).stale == 2500
        with pytest.raises(LimiterTimeout, match="0 of 5 items"):
            learner.sample(timeout=0.1)
        fresh = feed(actor, 5, first=9000)  # the stream goes on
        assert set(learner.sample().keys.tolist()) <= set(fresh.tolist())
        table.reset()
        table.reset()
        assert (info(replay).size, info(replay).evicted_reset) == (0, 2505)


def test_batches_fetched_ahead_outlive_a_reset_and_count_for_nothing(open_replay):
    replay = open_replay(
        simple(table='limiter = {kind = "ratio", samples_per_insert = 4, error_buffer = 100}', capacity=100)
    )
    with replay.actor("s") as actor, replay.learner("t", batch_size=4, prefetch=3, timeout=PATIENCE) as learner:
        keys = feed(actor, 10)
        learner.sample()
        wait_until(lambda: info(replay).reserved == 12, "three are ahead")
        replay.table("t").reset()
        for _ in range(3):
            assert set(learner.sample().keys.tolist()) <= set(keys.tolist())
        fresh = feed(actor, 10)
        assert set(learner.sample().keys.tolist()) <= set(fresh.tolist())
        wait_until(lambda: info(replay).sampled == 4, "only the last is counted")


def test_others_wait_while_a_large_table_is_reset(open_replay):
    replay = open_replay(simple(capacity=20_000, observation='{dtype = "float32", shape = [1]}'))
    errors = []

    def work():
        try:
            with replay.actor("s", timeout=PATIENCE) as actor:
                for i in range(20):
                    actor.append(obs=[float(i)], action=i, reward=0.0, terminated=False, truncated=False)
                    actor.flush()
        except Exception as error:
            errors.append(error)

    with replay.actor("s", num_envs=50, autoreset="next_step", timeout=PATIENCE) as actor:
        no = np.zeros(50, bool)
        for _ in range(200):
            actor.append(
                obs=np.zeros((50, 1)), action=np.zeros(50, int), reward=np.zeros(50), terminated=no, truncated=no
            )
        actor.flush()
        assert info(replay).size == 50 * 199
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        replay.table("t").reset(timeout=PATIENCE)
        for thread in threads:
            thread.join(PATIENCE)
        assert errors == []
        now = info(replay)
        assert now.size + now.evicted_reset == 50 * 199 + 2 * 19
        assert now.size == now.inserted


def test_a_reset_goes_on_when_nobody_waits_for_it(open_replay, transport):
    replay = open_replay(simple(capacity=20_000, observation='{dtype = "float32", shape = [1]}'))
    with replay.actor("s", num_envs=50, autoreset="next_step", timeout=PATIENCE) as actor:
        no = np.zeros(50, bool)
        for _ in range(200):
            actor.append(
                obs=np.zeros((50, 1)), action=np.zeros(50, int), reward=np.zeros(50), terminated=no, truncated=no
            )
        actor.flush()
        with pytest.raises(Timeout) as caught:
            replay.table("t").reset(timeout=0)
        if transport == "local":  # else no answer has come yet
            assert isinstance(caught.value, LeavingTimeout)
            assert "items are still to leave in table 't'" in str(caught.value)
            assert 0 < caught.value.have < 50 * 199
        actor.append(obs=np.ones((50, 1)), action=np.zeros(50, int), reward=np.zeros(50), terminated=no, truncated=no)
        assert len(actor.flush()) == 50
        assert info(replay).evicted_reset == 50 * 199
        assert (counts(replay, "t", see_keys(replay), 2000) > 0).all()


def see_keys(replay):
    with replay.learner("t", batch_size=100, timeout=PATIENCE) as learner:
        return np.array(list(see_all(learner, 50)), np.int64)
