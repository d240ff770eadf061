"""Servers and floors in processes of their own, pinned, of which all but the measured one are stopped.

So rows can be taken in turns on two cores, and each has the round trip of a cache line between the cores beside it: the
host moves virtual cores, and only rows of one state may be compared.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving import wait_until

import netreplay

ROOT = Path(__file__).parents[2]
CLIENT_CORE, SERVER_CORE = 0, 1
_ALLOWED = os.sched_getaffinity(0)
NEAR_NS = 250
"""a line's round trip below this: the virtual cores are near one another"""
SAME_STATE = 1.4
"""two round trips of the line within this factor: the same state"""


def two_cores() -> None:
    """Skips where client and server cannot have a core each."""
    if not {CLIENT_CORE, SERVER_CORE} <= _ALLOWED:
        pytest.skip("needs cores 0 and 1")


@cache
def program(name: str, build: str = "plain", folder: str = "dpdk_ext/tests") -> Path:
    """A C program, built: of the tests of the core, or of those of DPDK ports (build "dpdk")."""
    subprocess.run(["make", "-s", f"build/{build}/build.ninja"], cwd=ROOT, check=True)
    target = f"{folder}/{name}"
    command = ["flock", f"build/{build}/.lock", Path(sys.executable).with_name("ninja"), "-C", f"build/{build}", target]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return ROOT / f"build/{build}" / target


def json_lines(name: str, *arguments: object) -> list[dict[str, Any]]:
    """What a C program measured."""
    command = [str(program(name)), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{name} failed: {done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def line_ns() -> float:
    """Of a cache line, there and back between the cores. Nothing else may run on the server's core."""
    return float(json_lines("echo", "line")[0]["line_ns"])


def state(line: float) -> str:
    return "near" if line < NEAR_NS else "far"


def by_state(lines: list[float], values: list[float], form: str) -> str:
    """The medians of the near and of the far blocks."""
    parts = []
    for name in ("near", "far"):
        chosen = [(line, value) for line, value in zip(lines, values, strict=True) if state(line) == name]
        if chosen:
            median = statistics.median(value for _, value in chosen)
            line = statistics.median(line for line, _ in chosen)
            parts.append(f"{name} ({line:.0f} ns, {len(chosen)} blocks) {median:{form}}")
    return ", ".join(parts)


class Stoppable:
    """A process that is stopped while not in use."""

    def __init__(self, process: subprocess.Popen[Any]) -> None:
        self.process = process

    def halt(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")

        def stopped() -> bool:
            return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir())

        wait_until(stopped, "the process is stopped")

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class PlacedServer(Stoppable):
    """`netreplay serve` over "vhost", "udp" or (only here) "tcp", its loop pinned to a core."""

    def __init__(self, toml: str, folder: Path, path: str, core: int = SERVER_CORE, busy: bool = True) -> None:
        folder.mkdir(parents=True)
        config, ready = folder / "server.toml", folder / "ready"
        listen = f"vhost://{folder}/s" if path == "vhost" else "udp://127.0.0.1:0"
        poll = "busy" if busy else "adaptive"
        config.write_text(f'[server]\nlisten = "{listen}"\nauth = "off"\npoll = "{poll}"\ncore = {core}\n{toml}')
        command = [
            sys.executable,
            str(Path(__file__).with_name("serve_path.py")),
            path,
            "-c",
            str(config),
            "--ready-file",
            str(ready),
        ]
        with (folder / "log").open("w") as log:
            super().__init__(subprocess.Popen(command, stdout=log, stderr=log))
        wait_until(lambda: ready.exists() or self.process.poll() is not None, "the server is ready", 60)
        assert ready.exists(), (folder / "log").read_text()
        self.path, self.busy, self.url = path, busy, ready.read_text().splitlines()[0]

    def connect(self) -> netreplay.Replay:
        with over_tcp() if self.path == "tcp" else unchanged():
            return netreplay.connect(self.url, auth="off", poll="busy" if self.busy else "adaptive", timeout=60)


class Echo(Stoppable):
    """The C echo over a path, spinning."""

    def __init__(self, folder: Path, path: str) -> None:
        self.url = f"vhost://{folder}/echo" if path == "vhost" else f"{path}://127.0.0.1:7466"
        command = [str(program("echo")), "serve", self.url, "--core", str(SERVER_CORE)]
        super().__init__(subprocess.Popen(command))

    def ask(self, request: str, response: str, rounds: int) -> float:
        """Microseconds of its p50. It must go on."""
        arguments = ["--request", request, "--response", response, "--rounds", rounds, "--core", CLIENT_CORE]
        return float(json_lines("echo", "ask", self.url, *arguments)[0]["p50"])


@contextmanager
def pinned() -> Iterator[None]:
    """This process, and the threads that it starts meanwhile, on the client's core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {CLIENT_CORE})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def p50_us(call: Callable[[], object], rounds: int, warm: int = 30) -> float:
    """The median of so many calls, microseconds."""
    clock = time.perf_counter_ns
    times = []
    for number in range(warm + rounds):
        begin = clock()
        call()
        end = clock()
        if number >= warm:
            times.append(end - begin)
    return statistics.median(times) / 1000


# ---- CartPole-size experience ----

ITEMS = 100_000
TOML = """
[store.cartpole]
observation.obs = {dtype = "float32", shape = [4]}
action.action = {dtype = "int64"}
[table.cartpole]
store = "cartpole"
capacity = 100_000
exponent = 0.6
window = {n = 1, gamma = 0.99}
"""


class Subject:
    """A filled memory and the calls to measure; each has fresh values, keys of a batch drawn before, new priorities."""

    def __init__(self, replay: netreplay.Replay) -> None:
        self.replay = replay
        self.rng = np.random.default_rng(1)
        self.actor = replay.actor("cartpole")
        self.learner = replay.learner("cartpole", batch_size=32, timeout=10)
        self.wide = replay.learner("cartpole", batch_size=512, timeout=10)
        self.observations = self.rng.standard_normal((4096, 4)).astype(np.float32)
        self.step = 0
        for _ in range(ITEMS):
            self.append()
        self.actor.flush(60)
        self.updates: list[tuple[Any, Any]] = []

    def append(self) -> None:
        self.step += 1
        observation = self.observations[self.step & 4095]
        self.actor.append(obs=observation, action=1, reward=1.0, terminated=False, truncated=False)

    def insert(self) -> None:
        self.append()
        self.actor.flush()

    def ping(self) -> None:
        self.replay.ping()

    def sample(self) -> None:
        self.learner.sample()

    def update(self) -> None:
        keys, priorities = self.updates.pop()
        self.learner.update_priorities(keys, priorities)

    def prepare(self, call: str, rounds: int) -> None:
        if call == "update":
            self.updates = [(self.wide.sample().keys, self.rng.uniform(0.01, 3, 512)) for _ in range(rounds)]

    def exchanged(self, call: str, rounds: int = 64) -> tuple[str, str]:
        """Bytes and datagrams of one call each way, as counted by the client: BYTESxN."""
        self.prepare(call, rounds)
        before = self.replay.counters()
        for _ in range(rounds):
            getattr(self, call)()
        after = self.replay.counters()

        def one(what: str) -> str:
            count = getattr(after, f"datagrams_{what}") - getattr(before, f"datagrams_{what}")
            size = getattr(after, f"bytes_{what}") - getattr(before, f"bytes_{what}")
            return f"{round(size / count)}x{max(1, round(count / rounds))}"

        return one("sent"), one("received")

    def close(self) -> None:
        for part in (self.actor, self.learner, self.wide, self.replay):
            part.close()


# ---- TCP, which no address names ----


@contextmanager
def unchanged() -> Iterator[None]:
    yield


@contextmanager
def over_tcp() -> Iterator[None]:
    """What connects to udp:// meanwhile connects over the test-only TCP."""
    from netreplay.clients import connect

    class Lib:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, "nr_binding_replay_tcp" if name == "nr_replay_udp" else name)

    real, connect.lib = connect.lib, Lib()
    try:
        yield
    finally:
        connect.lib = real
