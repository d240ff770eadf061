"""cpprb with its options for stacks: each frame once, where episodes and stacks allow."""

from __future__ import annotations

import numpy as np
from cpprb import PrioritizedReplayBuffer
from worker import ALPHA, FRAME, STACK, serve


class Buffer:
    def __init__(self, size: str, items: int) -> None:
        assert size == "atari"
        columns = {"obs": {"shape": (*FRAME, STACK), "dtype": np.uint8}, "act": {"dtype": np.int32}}
        columns |= {"rew": {"dtype": np.float32}, "done": {"dtype": np.bool_}}
        buffer = PrioritizedReplayBuffer(items, columns, alpha=ALPHA, next_of="obs", stack_compress="obs")
        random = np.random.default_rng(1)
        stack = random.integers(0, 256, (*FRAME, STACK), np.uint8)
        for _ in range(items):
            following = np.concatenate([stack[..., 1:], random.integers(0, 256, (*FRAME, 1), np.uint8)], axis=-1)
            buffer.add(obs=stack, act=1, rew=0.5, next_obs=following, done=False)
            stack = following
        self.buffer = buffer


if __name__ == "__main__":
    serve(Buffer)
