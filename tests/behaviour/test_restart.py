"""A server that dies and comes back: clients reconnect by themselves and say what was lost. Case 19, semantics 7, 8."""

from __future__ import annotations

import logging
import threading
import warnings

import numpy as np
import pytest
from feeding import feed
from serving import PATIENCE, wait_until
from specs import simple

import netreplay
from netreplay import DataLossWarning, SpecError

ROW = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False}


@pytest.fixture
def server(start_server):
    return start_server(simple(capacity=5000))


@pytest.fixture
def replay(server, resources):
    return resources.enter_context(netreplay.connect(server.url, auth="off", timeout=PATIENCE))


def test_an_actor_goes_on_and_names_what_was_lost(server, replay, caplog):
    with replay.actor("s") as actor:
        keys = feed(actor, 40)
        assert replay.losses() == []
        server.kill()
        server.restart()
        with caplog.at_level(logging.WARNING, "netreplay"), pytest.warns(DataLossWarning, match="no longer holds 40 "):
            later = feed(actor, 10, first=40)
        assert len(later) == 10
        assert set(later.tolist()).isdisjoint(keys.tolist())
        losses = replay.losses()
        assert sum(loss.items for loss in losses) == 40
        assert losses[0].first_item == 0
        assert len(losses[0].stream) == 32
        counters = actor.counters()
        assert (counters.lost, counters.acknowledged) == (40, 50)
        assert counters.reconnects >= 1
        assert "no longer holds 40 acknowledged items" in caplog.text
    assert replay.table("t").info().size == 10


def test_what_was_not_acknowledged_is_sent_again(server, replay):
    with replay.actor("s") as actor:
        actor.append(obs=np.zeros(4), **ROW)
        actor.flush()
        server.kill()
        for i in range(20):
            actor.append(obs=np.full(4, i + 1), **ROW)
        server.restart()
        assert len(actor.flush()) == 20
        assert actor.counters().lost == 0
        assert replay.losses() == []
    with replay.learner("t", batch_size=500, timeout=PATIENCE) as learner:
        batch = learner.sample()
        assert np.array_equal(batch["next_obs"], batch["obs"] + 1)
        assert len(set(batch.keys.tolist())) == 20


def test_nothing_is_lost_when_only_the_answer_was(server, replay):
    """Stopped, not killed: the same server goes on where it was."""
    with replay.actor("s") as actor:
        feed(actor, 5)
        server.stop()
        try:
            actor.append(obs=np.zeros(4), **ROW)
            actor.append(obs=np.zeros(4), **ROW)
            with pytest.raises(netreplay.Timeout, match="no answer from"):
                actor.flush(timeout=0.5)
        finally:
            server.go_on()
        assert len(actor.flush()) == 1
    assert replay.table("t").info().size == 6
    assert replay.losses() == []


def test_a_learner_waits_for_the_server_to_come_back(server, replay):
    found = []
    with replay.actor("s") as actor, replay.learner("t", batch_size=4, prefetch=2, timeout=PATIENCE) as learner:
        keys = feed(actor, 4)
        learner.sample()
        server.kill()
        waiting = threading.Thread(target=lambda: found.extend(learner.sample() for _ in range(5)))
        waiting.start()
        server.restart()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataLossWarning)
            feed(actor, 4)
        waiting.join(PATIENCE)
        assert len(found) == 5
        assert learner.update_priorities(keys, np.ones(4)).stale == 4


def test_parameters_are_published_again(server, replay):
    version = replay.parameters.publish({"w": np.arange(1000.0)})
    server.kill()
    server.restart()
    replay.tables()

    def there():
        found = replay.parameters.fetch(timeout=PATIENCE)
        return found is not None and np.array_equal(found[1]["w"], np.arange(1000.0)) and found[0] > version

    wait_until(there, "the parameters are there again, under a newer version")


def test_an_idle_publisher_publishes_again_by_itself(server, replay, resources):
    version = replay.parameters.publish({"w": np.arange(3.0)})
    server.kill()
    server.restart()
    other = resources.enter_context(netreplay.connect(server.url, auth="off", timeout=PATIENCE))
    wait_until(
        lambda: other.parameters.fetch() is not None, "the parameters are back without a call of their publisher"
    )
    later, tensors = other.parameters.fetch()
    assert later > version
    assert tensors["w"].tolist() == [0.0, 1.0, 2.0]


def test_a_server_with_another_spec_is_refused_and_named(server, replay):
    server.kill()
    server.configure(simple(capacity=5000, observation='{dtype = "float32", shape = [5]}'))
    server.restart()
    actor, learner = replay.actor("s"), replay.learner("t", batch_size=1)
    for call in (
        lambda: feed(actor, 1),
        replay.tables,
        replay.parameters.fetch,
        lambda: learner.sample(timeout=PATIENCE),
        lambda: learner.update_priorities([1], [1.0]),
        lambda: replay.actor("s"),
    ):
        with pytest.raises(SpecError, match=r"now has another spec than the one connected to.*connect again") as caught:
            call()
        assert server.url.partition("://")[2] in str(caught.value)
    with pytest.raises(SpecError, match="another spec"):
        actor.close()
