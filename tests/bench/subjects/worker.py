"""What every subject's process does: fill a buffer, then time the calls that are asked for on standard input.

Runs in the subject's own virtual environment, so it needs numpy and nothing of netreplay. A line in, "CALL ROUNDS"; a
line out, the median of the rounds in microseconds. Inputs are made before the clock starts and are new for every call.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ALPHA, BETA = 0.6, 0.4
CHUNK = 512
FRAME = (84, 84)
STACK = 4


def resident_bytes() -> int:
    """of this process"""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def transitions(size: str, count: int, seed: int) -> dict[str, Any]:
    """`count` transitions: CartPole's 45 bytes, or Atari's two stacks of four frames."""
    random = np.random.default_rng(seed)
    if size == "cartpole":
        obs, next_obs = random.random((2, count, 4), np.float32)
        act = random.integers(0, 2, count, np.int32)
    else:
        shape = (count, STACK, *FRAME)
        obs, next_obs = (random.integers(0, 256, shape, np.uint8) for _ in range(2))
        act = random.integers(0, 6, count, np.int32)
    return {
        "obs": obs,
        "act": act,
        "rew": random.random(count, np.float32),
        "next_obs": next_obs,
        "done": random.random(count) < 0.01,
    }


def priorities(count: int, random: np.random.Generator) -> np.ndarray:
    """Drawn, not flat: over about four decades."""
    return random.lognormal(0.0, 1.5, count)


def answer(value: object) -> None:
    """A line that nothing else which a peer may print begins with."""
    print(f"answer {json.dumps(value)}", flush=True)


def serve(make: Callable[[str, int], Any]) -> None:
    """argv: size, items, core. A subject has a method for each call, which yields functions of no argument to time."""
    size, items, core = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.sched_setaffinity(0, {core})
    before = resident_bytes()
    subject = make(size, items)
    answer({"bytes_per_item": (resident_bytes() - before) / items})
    for line in sys.stdin:
        name, rounds = line.split()
        calls: Iterator[Callable[[], object]] = getattr(subject, name)()
        times = []
        for number in range(int(rounds) + 20):
            call = next(calls)
            begin = time.perf_counter_ns()
            call()
            if number >= 20:
                times.append((time.perf_counter_ns() - begin) / 1000)
        answer(statistics.median(times))
