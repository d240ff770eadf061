"""Clients and servers that come, go and are killed under load: the survivor goes on, the acknowledged is there."""

from __future__ import annotations

import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from feeding import feed
from serving import PATIENCE, forked, wait_until
from specs import simple

import netreplay
from netreplay import DataLossWarning
from netreplay.errors import LimiterTimeout

MIB = 1 << 20
ROW = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False}


def resident(pid: int) -> int:
    """Bytes of memory that a process has and shares with no file."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_a_hundred_clients_in_turn_leave_nothing_behind(start_server):
    server = start_server(simple(capacity=200))
    pid = server.process.pid
    alone = descriptors(pid)
    for number in range(1, 101):
        with netreplay.connect(server.url, auth="off", timeout=PATIENCE) as replay:
            with replay.actor("s") as actor:
                feed(actor, 30)
            with replay.learner("t", batch_size=16, timeout=PATIENCE) as learner:
                learner.sample()
        if number in (10, 100):  # the server has noticed that the client left
            wait_until(lambda: descriptors(pid) == alone, "as many descriptors are open as before any client")
        if number == 10:
            memory = resident(pid)
    assert resident(pid) - memory < MIB


class Load:
    """A client of this process that inserts, samples and updates until told to stop; an error of it fails the test."""

    def __init__(self, url: str) -> None:
        self.url, self.acknowledged, self.turns = url, 0, 0
        self.losses: list[int] = []
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with warnings.catch_warnings(), netreplay.connect(self.url, auth="off", timeout=PATIENCE) as replay:
                warnings.simplefilter("ignore", DataLossWarning)
                with replay.actor("s") as actor, replay.learner("t", batch_size=8, timeout=PATIENCE) as learner:
                    while not self._stop.is_set():
                        for i in range(5):
                            actor.append(obs=np.full(4, i), **ROW)
                        actor.flush(PATIENCE)
                        with suppress(LimiterTimeout):  # of a server that was just started
                            learner.update_priorities(learner.sample(timeout=1).keys, np.ones(8))
                        self.acknowledged = actor.counters().acknowledged
                        self.turns += 1
                    self.losses = [loss.items for loss in replay.losses()]
        except BaseException as error:
            self._error = error

    def goes_on(self, turns: int = 3) -> None:
        """Waits until it has done more."""
        wanted = self.turns + turns
        wait_until(lambda: self.turns >= wanted or self._error is not None, "the other client goes on")
        assert self._error is None, self._error

    def __enter__(self) -> Load:
        self._thread.start()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        assert self._error is None, self._error


def insert_for_ever(url: str, told: str) -> None:
    """In a process that will be killed: keeps in a file how many of its items were acknowledged."""
    replay = netreplay.connect(url, auth="off", timeout=PATIENCE)
    actor = replay.actor("s")
    with Path(told).open("r+b", buffering=0) as file:
        while True:
            actor.append(obs=np.zeros(4), **ROW)
            actor.append(obs=np.zeros(4), **ROW)
            actor.flush(PATIENCE)
            file.seek(0)
            file.write(b"%12d" % actor.counters().acknowledged)


def test_twenty_killed_clients_disturb_nobody_and_lose_nothing_acknowledged(start_server, tmp_path, rng):
    server = start_server(simple(capacity=200_000, store="streams = 64"))
    told = []
    with Load(server.url) as load:
        for number in range(20):
            path = tmp_path / f"client{number}"
            path.write_bytes(b"%12d" % 0)
            told.append(path)
            client = forked(insert_for_ever, server.url, str(path))
            wait_until(lambda path=path: int(path.read_bytes()) > 0, "the client has inserted")
            time.sleep(rng.uniform(0, 0.01))  # to be killed anywhere
            client.kill()
            client.join(PATIENCE)
            load.goes_on(1)
        load.goes_on()
    assert server.process.is_alive()
    with netreplay.connect(server.url, auth="off", timeout=PATIENCE) as replay:
        info = replay.table("t").info()
        assert info.size >= load.acknowledged + sum(int(path.read_bytes()) for path in told)
        assert info.evicted_capacity == 0
        with replay.actor("s") as actor:
            assert len(feed(actor, 5)) == 5


def test_a_server_killed_five_times_loses_only_what_it_held(start_server):
    server = start_server(simple(capacity=200_000))
    with Load(server.url) as load:
        for _ in range(5):
            server.kill()
            server.restart()
            load.goes_on()
    assert sum(load.losses) < load.acknowledged
    with netreplay.connect(server.url, auth="off", timeout=PATIENCE) as replay:
        assert replay.table("t").info().size >= load.acknowledged - sum(load.losses) > 0


@pytest.mark.parametrize("network", ["vhost"], indirect=True)
def test_vhost_clients_that_are_killed_give_their_devices_back(start_server, tmp_path):
    server = start_server("[server]\nvhost_clients = 2\n" + simple(capacity=200_000))
    path = tmp_path / "client"
    for _ in range(5):
        path.write_bytes(b"%12d" % 0)
        clients = [forked(insert_for_ever, server.url, str(path)) for _ in range(2)]
        wait_until(lambda: int(path.read_bytes()) > 0, "a client has inserted")
        for client in clients:
            client.kill()
            client.join(PATIENCE)
    with netreplay.connect(server.url, timeout=PATIENCE) as replay:
        replay.ping()
