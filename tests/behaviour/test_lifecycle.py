"""Processes, handles and their ends: fork, pickle, warnings, exit."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import warnings

import numpy as np
import pytest
from feeding import feed
from serving import PATIENCE
from specs import simple

import netreplay
from netreplay.errors import Forked, NotPicklableError


def in_child(work):
    """Runs work() in a forked child; what it returned, as text."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks beside threads: that is the point
        child = os.fork()
    if child == 0:
        try:
            answer = str(work())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    return answer


def test_use_after_fork_is_a_typed_error_with_the_way_out(open_replay):
    replay = open_replay(simple())
    row = {"obs": np.zeros(4), "action": 0, "reward": 0.0, "terminated": False, "truncated": False}
    with replay.actor("s") as actor, replay.learner("t", batch_size=4, prefetch=1) as learner:
        feed(actor, 5)
        learner.sample()
        for use in (
            lambda: actor.append(**row),
            actor.flush,
            learner.sample,
            lambda: learner.update_priorities([1], [1.0]),
            replay.tables,
            replay.parameters.fetch,
            lambda: replay.actor("s"),
        ):
            answer = in_child(use)
            assert answer.startswith("Forked: ")
            assert "call connect() in the child" in answer
        assert in_child(lambda: (actor.close(), learner.close(), replay.close(), "closed")[-1]) == "closed"
        assert len(feed(actor, 3)) == 3
        assert len(learner.sample()) == 4
    assert issubclass(Forked, netreplay.NetreplayError)


def test_a_child_may_connect_for_itself(open_replay):
    open_replay(simple())

    def work():
        with netreplay.connect("local:", spec=netreplay.Spec.from_toml(simple())) as replay, replay.actor("s") as actor:
            return len(feed(actor, 4))

    assert in_child(work) == "4"


def test_a_replay_goes_to_another_process_where_it_can(open_replay, transport):
    replay = open_replay(simple(), timeout=7.0)
    if transport == "local":
        with pytest.raises(NotPicklableError, match="lives in one process"):
            pickle.dumps(replay)
        return
    with pickle.loads(pickle.dumps(replay)) as copy:
        assert copy.url == replay.url
        with copy.actor("s") as actor:
            feed(actor, 3)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(_size, (replay,)).get(PATIENCE) == 3


def _size(replay):
    with replay:
        return replay.table("t").info().size


def test_specs_go_to_another_process():
    spec = netreplay.Spec.from_toml(simple())
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize("what", ["replay", "actor", "learner"])
def test_what_was_not_closed_warns(open_replay, what):
    replay = open_replay(simple())
    made = {
        "replay": lambda: netreplay.connect("local:", spec=netreplay.Spec.from_toml(simple())),
        "actor": lambda: replay.actor("s"),
        "learner": lambda: replay.learner("t", batch_size=1, prefetch=1),
    }[what]()
    if what == "learner":
        with pytest.raises(netreplay.Timeout):
            made.sample(timeout=0)
    holder = [made]
    del made
    with pytest.warns(ResourceWarning, match=f"unclosed <{what}"):
        holder.clear()


def test_actors_and_learners_outlive_a_dropped_replay(open_replay):
    replay = netreplay.connect("local:", spec=netreplay.Spec.from_toml(simple()))
    actor, learner = replay.actor("s"), replay.learner("t", batch_size=4)
    holder = [replay]
    del replay
    with pytest.warns(ResourceWarning, match="unclosed <replay"):
        holder.clear()
    feed(actor, 4)
    assert len(learner.sample(timeout=5)) == 4
    actor.close()
    learner.close()


def run_python(code, *arguments, **options):
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def test_what_was_accepted_is_stored_at_exit(start_server):
    server = start_server(simple())
    done = run_python(
        """
        import sys, numpy as np, netreplay
        replay = netreplay.connect(sys.argv[1], auth="off")
        actor = replay.actor("s")
        for i in range(51):
            actor.append(obs=np.zeros(4), action=i, reward=0.0, terminated=False, truncated=False)
        """,
        server.url,
    )
    assert done.returncode == 0, done.stderr
    with netreplay.connect(server.url, auth="off") as replay:
        assert replay.table("t").info().size == 50


def test_importing_netreplay_loads_neither_clients_nor_torch():
    done = run_python(
        """
        import sys, netreplay
        assert netreplay.Spec and netreplay.errors and netreplay.__version__
        loaded = [m for m in sys.modules if m.startswith(("netreplay.clients", "netreplay.appliance", "torch"))]
        assert not loaded, loaded
        assert callable(netreplay.connect)
        assert "torch" not in sys.modules
        """
    )
    assert done.returncode == 0, done.stderr
