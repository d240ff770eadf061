"""Actors that a store has no streams for: one typed error with the way out, as early as it is known."""

from __future__ import annotations

import numpy as np
import pytest
from feeding import feed
from serving import wait_until
from specs import simple

import netreplay
from netreplay.clients.reasons import stream_refusal
from netreplay.errors import Status, TooManyError

WAY_OUT = r"raise store\.s\.streams \(now 8\) in the server's config"


def rows(count: int, number: int) -> dict[str, np.ndarray]:
    no = np.zeros(count, np.bool_)
    obs = np.full((count, 4), number, np.float32)
    return {"obs": obs, "action": np.arange(count), "reward": np.zeros(count), "terminated": no, "truncated": no}


def many(replay, count):
    return replay.actor("s", num_envs=count, autoreset="next_step")


def assert_named(error):
    assert (error.store, error.field, error.value) == ("s", "store.s.streams", 8)
    assert error.status == Status.TOO_MANY


@pytest.mark.parametrize("appends", [1, 2, 3])
@pytest.mark.parametrize("second", [1, 5, 8])
def test_actors_that_together_exceed_the_streams(open_replay, transport, second, appends):
    replay = open_replay(simple(store="streams = 8"))
    with many(replay, 8) as first:
        if transport == "local":
            with pytest.raises(TooManyError, match=rf"actor of store 's': .*{WAY_OUT}") as caught:
                replay.actor("s", num_envs=second, autoreset="next_step")
            assert_named(caught.value)
        else:
            other = replay.actor("s", num_envs=second, autoreset="next_step")

            def use():
                for number in range(appends):
                    other.append(**rows(second, number) if second > 1 else one(number))
                # Without an item there is nothing to wait for: until the server has answered, all seems well.
                wait_until(lambda: len(other.flush()) > 0, "flush says that the streams were refused")

            with pytest.raises(TooManyError, match=WAY_OUT) as caught:
                use()
            assert_named(caught.value)
            with pytest.raises(TooManyError, match=WAY_OUT):
                other.append(**rows(second, 9) if second > 1 else one(9))
            with pytest.raises(TooManyError, match=WAY_OUT):
                other.flush()
            other.close()
        # The actor that has its streams is unharmed.
        for number in range(3):
            first.append(**rows(8, number))
        keys = first.flush()
        assert len(keys) == 16
        assert (keys >= 0).all()
        assert replay.table("t").info().size == 16


def one(number):
    return {"obs": np.full(4, number), "action": 0, "reward": 0.0, "terminated": False, "truncated": False}


def test_what_was_appended_before_the_answer_is_told_by_flush(start_server):
    """The server stands still while the second actor opens and appends, so that nothing is refused yet."""
    server = start_server(simple(store="streams = 8"))
    with netreplay.connect(server.url, auth="off") as replay, many(replay, 8) as first:
        first.append(**rows(8, 0))
        first.flush()
        server.stop()
        other = many(replay, 4)
        for number in range(3):
            other.append(**rows(4, number))
            first.append(**rows(8, number + 1))
        server.go_on()
        with pytest.raises(TooManyError, match=r"8 of 8 items since the last flush are not stored") as caught:
            other.flush()
        assert_named(caught.value)
        assert caught.value.keys.tolist() == [-1] * 8
        assert other.counters().refused == 8
        other.close()  # said once
        keys = first.flush()
        assert len(keys) == 24
        assert (keys >= 0).all()
        info = replay.table("t").info()
        assert (info.size, info.refused) == (24, 0)


def test_close_tells_it_where_nothing_else_did(start_server):
    server = start_server(simple(store="streams = 8"))
    with netreplay.connect(server.url, auth="off") as replay, many(replay, 8):
        server.stop()
        other = many(replay, 2)
        for number in range(2):
            other.append(**rows(2, number))
        server.go_on()
        with pytest.raises(TooManyError, match=WAY_OUT):
            other.close()


def test_a_place_that_comes_free_is_for_the_next_actor(open_replay, transport):
    replay = open_replay(simple(store="streams = 8"))
    first = many(replay, 8)
    first.append(**rows(8, 0))
    first.flush()
    if transport != "local":
        other = replay.actor("s")
        with pytest.raises(TooManyError):
            feed(other, 1)
        other.close()
    first.close()

    def fits():
        try:
            with replay.actor("s") as actor:
                return len(feed(actor, 2)) == 2
        except TooManyError:
            return False

    wait_until(fits, "the closed actor's streams have come free")


@pytest.mark.parametrize("status", [Status.TOO_MANY, Status.STREAM_OWNED, Status.STREAM_GONE])
def test_every_refusal_of_a_stream_names_store_and_field(status):
    error = stream_refusal(status, "flush", "s", 8)
    assert (error.store, error.field, error.value, error.status) == ("s", "store.s.streams", 8, status)
    assert "store 's'" in str(error)
    assert "store.s.streams" in str(error)
    assert "8" in str(error)
    assert "anew" in str(error)


def test_a_session_too_many_names_its_field(start_server):
    server = start_server("[server]\nauth = 'off'\nsessions = 1\n" + simple())
    with (
        netreplay.connect(server.url, auth="off"),
        pytest.raises(TooManyError, match=r"raise server\.sessions in its config"),
    ):
        netreplay.connect(server.url, auth="off", timeout=2)
