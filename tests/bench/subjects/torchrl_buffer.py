"""TorchRL's prioritized buffer in the process: memory taken at start, whole batches, its C++ trees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer
from torchrl.data.replay_buffers.samplers import SumSegmentTreeFp32
from worker import ALPHA, BETA, CHUNK, priorities, serve, transitions

assert SumSegmentTreeFp32 is not None, "the C++ trees are not there"
torch.set_num_threads(1)


def rows(size: str, count: int, seed: int) -> TensorDict:
    columns = {name: torch.from_numpy(column) for name, column in transitions(size, count, seed).items()}
    return TensorDict(columns, batch_size=[count])


class Buffer:
    def __init__(self, size: str, items: int) -> None:
        self.size, self.items = size, items
        self.random = np.random.default_rng(1)
        storage = LazyTensorStorage(items)
        self.buffer = TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA, beta=BETA, storage=storage, batch_size=32, priority_key="td"
        )
        for begin in range(0, items, CHUNK):
            self.buffer.extend(rows(size, min(CHUNK, items - begin), begin))
        for begin in range(0, items, CHUNK):
            keys = torch.arange(begin, min(begin + CHUNK, items))
            self.buffer.update_priority(keys, torch.from_numpy(priorities(len(keys), self.random)).float())

    def append_1(self) -> Iterator[Any]:
        many = rows(self.size, CHUNK, 7)
        at = 0
        while True:
            row = many[at % CHUNK]
            at += 1
            yield lambda row=row: self.buffer.add(row)

    def append_512(self) -> Iterator[Any]:
        many = rows(self.size, CHUNK, 8)
        while True:
            fresh = many.clone()
            yield lambda fresh=fresh: self.buffer.extend(fresh)

    def sample(self, count: int) -> Iterator[Any]:
        while True:
            yield lambda: self.buffer.sample(count)

    def sample_32(self) -> Iterator[Any]:
        return self.sample(32)

    def sample_512(self) -> Iterator[Any]:
        return self.sample(512)

    def update_512(self) -> Iterator[Any]:
        while True:
            keys = torch.from_numpy(self.random.choice(self.items, 512, replace=False))
            values = torch.from_numpy(priorities(512, self.random)).float()
            yield lambda keys=keys, values=values: self.buffer.update_priority(keys, values)


if __name__ == "__main__":
    serve(Buffer)
