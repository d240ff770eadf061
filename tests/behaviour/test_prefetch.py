"""Batches fetched ahead starve nobody else of the same connection. Case 15; semantics 4, 6."""

from __future__ import annotations

import pytest
from feeding import feed
from serving import PATIENCE
from specs import simple


@pytest.fixture
def replay(open_replay):
    return open_replay(simple(capacity=3000))


@pytest.mark.parametrize(("ahead", "size", "other"), [(12, 10, 10), (12, 10, 700), (3, 700, 700), (8, 256, 1500)])
def test_what_one_learner_fetched_ahead_leaves_room_for_another(replay, ahead, size, other):
    with replay.actor("s") as actor:
        feed(actor, 200)
    with (
        replay.learner("t", batch_size=size, prefetch=ahead, timeout=PATIENCE) as first,
        replay.learner("t", batch_size=other, timeout=PATIENCE) as second,
    ):
        for _ in range(5):
            assert len(first.sample()) == size
            assert len(second.sample()) == other
            assert len(second.sample()) == other


def test_a_batch_that_was_taken_shows_in_the_table_at_once(replay):
    with replay.actor("s") as actor:
        feed(actor, 50)
    with replay.learner("t", batch_size=16, timeout=PATIENCE) as learner:
        for taken in range(1, 20):
            learner.sample()
            assert replay.table("t").info().sampled == 16 * taken
