"""netreplay in the process: `local:`, one actor that feeds one environment and one that feeds 512."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from worker import ALPHA, BETA, CHUNK, FRAME, STACK, priorities, serve, transitions

import netreplay

SPEC = """
[store.s]
observation.obs = {{dtype = "{dtype}", shape = {shape}}}
action.action = {{dtype = "int32", shape = []}}
streams = 600
in_flight = 8
[table.t]
store = "s"
capacity = {items}
exponent = {exponent}
window = {{kind = "nstep", n = 1, gamma = 0.99, stack = {stack}}}
[parameters.default]
max_bytes = 8
"""


class Buffer:
    def __init__(self, size: str, items: int) -> None:
        dtype, shape, stack = ("float32", [4], 1) if size == "cartpole" else ("uint8", list(FRAME), STACK)
        spec = netreplay.Spec.from_toml(SPEC.format(dtype=dtype, shape=shape, items=items, exponent=ALPHA, stack=stack))
        self.replay = netreplay.connect("local:", spec=spec)
        self.size, self.items = size, items
        self.random = np.random.default_rng(1)
        self.one = self.replay.actor("s")
        many = min(CHUNK, items)
        self.many = self.replay.actor("s", num_envs=many, autoreset="next_step")
        self.learners = {count: self.replay.learner("t", batch_size=count) for count in (32, 512)}
        self.rows = [self.steps(many, seed) for seed in range(4)]
        self.keys = np.zeros(0, np.int64)
        self.inserted: list[np.ndarray] = []
        while sum(map(len, self.inserted)) < items:
            for at in range(8):
                self.many.append(**self.rows[at % 4])
            self.collect()
        self.newest()
        for begin in range(0, items, CHUNK):
            keys = self.keys[begin : begin + CHUNK]
            self.learners[32].update_priorities(keys, priorities(len(keys), self.random))

    def steps(self, count: int, seed: int) -> dict[str, Any]:
        if self.size == "cartpole":
            made = transitions("cartpole", count, seed)
            obs, act, rew = made["obs"], made["act"], made["rew"]
        else:
            random = np.random.default_rng(seed)
            obs = random.integers(0, 256, (count, *FRAME), np.uint8)
            act, rew = random.integers(0, 6, count, np.int32), random.random(count, np.float32)
        never = np.zeros(count, np.bool_)
        return {"obs": obs, "action": act, "reward": rew, "terminated": never, "truncated": never}

    def collect(self) -> None:
        """Takes the keys of what was appended, so that updates name items that are there."""
        self.inserted += [self.one.flush(), self.many.flush()]

    def newest(self) -> None:
        self.collect()
        self.keys = np.concatenate([self.keys, *self.inserted])[-self.items :]
        self.inserted.clear()

    def append_1(self) -> Iterator[Any]:
        rows = self.rows[0]
        count = len(rows["obs"])
        at = 0
        while True:
            row = {name: column[at % count] for name, column in rows.items()}
            row |= {"terminated": False, "truncated": False}
            at += 1
            if at % CHUNK == 0:
                self.collect()
            yield lambda row=row: self.one.append(**row)

    def append_512(self) -> Iterator[Any]:
        at = 0
        while True:
            rows = self.rows[at % 4]
            at += 1
            self.collect()
            yield lambda rows=rows: self.many.append(**rows)

    def sample(self, count: int) -> Iterator[Any]:
        learner = self.learners[count]

        def call() -> tuple[Any, ...]:
            batch = learner.sample()
            return (
                batch["obs"],
                batch["action"],
                batch["reward"],
                batch["next_obs"],
                batch["discount"],
                batch.keys,
                batch.weights(BETA),
            )

        while True:
            yield call

    def sample_32(self) -> Iterator[Any]:
        return self.sample(32)

    def sample_512(self) -> Iterator[Any]:
        return self.sample(512)

    def update_512(self) -> Iterator[Any]:
        self.newest()
        learner = self.learners[512]
        while True:
            keys = self.keys[self.random.choice(self.items, 512, replace=False)]
            values = priorities(512, self.random)
            yield lambda keys=keys, values=values: learner.update_priorities(keys, values)


class Copy:
    """The floor of Atari-size samples: the same random frames, from as large an array, into the same batch buffer."""

    def __init__(self, items: int) -> None:
        self.random = np.random.default_rng(2)
        self.slab = np.zeros((items, *FRAME), np.uint8)
        self.slab += 1

    def sample(self, count: int) -> Iterator[Any]:
        frames = STACK + 1
        into = np.zeros((count * frames, *FRAME), np.uint8)
        while True:
            first = self.random.integers(0, len(self.slab) - frames, count)
            places = (first[:, None] + np.arange(frames)).ravel()
            yield lambda places=places: np.take(self.slab, places, axis=0, out=into, mode="clip")

    def sample_32(self) -> Iterator[Any]:
        return self.sample(32)

    def sample_512(self) -> Iterator[Any]:
        return self.sample(512)


def make(size: str, items: int) -> Any:
    return Copy(items) if size == "copy" else Buffer(size, items)


if __name__ == "__main__":
    serve(make)
