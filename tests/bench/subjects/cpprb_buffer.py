"""cpprb's prioritized buffer as its documentation uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from cpprb import PrioritizedReplayBuffer
from worker import ALPHA, BETA, CHUNK, FRAME, STACK, priorities, serve, transitions


class Buffer:
    def __init__(self, size: str, items: int, **options: Any) -> None:
        shape = (4,) if size == "cartpole" else (STACK, *FRAME)
        dtype = np.float32 if size == "cartpole" else np.uint8
        columns = {"obs": {"shape": shape, "dtype": dtype}, "act": {"dtype": np.int32}, "rew": {"dtype": np.float32}}
        columns |= {"next_obs": {"shape": shape, "dtype": dtype}, "done": {"dtype": np.bool_}}
        self.size, self.items = size, items
        self.buffer = PrioritizedReplayBuffer(items, columns, alpha=ALPHA, **options)
        self.random = np.random.default_rng(1)
        for begin in range(0, items, CHUNK):
            count = min(CHUNK, items - begin)
            self.buffer.add(**transitions(size, count, begin), priorities=priorities(count, self.random))

    def append_1(self) -> Iterator[Any]:
        rows = transitions(self.size, CHUNK, 7)
        at = 0
        while True:
            row = {name: column[at % CHUNK] for name, column in rows.items()}
            at += 1
            yield lambda row=row: self.buffer.add(**row)

    def append_512(self) -> Iterator[Any]:
        rows = transitions(self.size, CHUNK, 8)
        while True:
            yield lambda: self.buffer.add(**rows)

    def sample(self, count: int) -> Iterator[Any]:
        while True:
            yield lambda: self.buffer.sample(count, beta=BETA)

    def sample_32(self) -> Iterator[Any]:
        return self.sample(32)

    def sample_512(self) -> Iterator[Any]:
        return self.sample(512)

    def update_512(self) -> Iterator[Any]:
        while True:
            keys = self.random.choice(self.items, 512, replace=False)
            values = priorities(512, self.random)
            yield lambda keys=keys, values=values: self.buffer.update_priorities(keys, values)


if __name__ == "__main__":
    serve(Buffer)
