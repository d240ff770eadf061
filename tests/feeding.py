"""Small ways to put items in and to see them all, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from netreplay import Actor, Learner, Replay


def feed(actor: Actor, count: int, priority: Any = None, first: int = 0) -> np.ndarray:
    """`count` items, an episode of one step each, obs = action = reward = first, first + 1, ...; their keys [count]."""
    for i in range(first, first + count):
        value = np.full(4, i, np.float32)
        given = priority[i - first] if isinstance(priority, list | np.ndarray) else priority
        actor.append(obs=value, action=i, reward=float(i), terminated=True, truncated=False)
        actor.end(obs=value, priority=given)
    return actor.flush()


def see_all(learner: Learner, count: int, draws: int = 400) -> dict[int, dict[str, Any]]:
    """Samples until `count` different items were seen: their fields by key."""
    seen: dict[int, dict[str, Any]] = {}
    for _ in range(draws):
        batch = learner.sample(timeout=10)
        for row, key in enumerate(batch.keys.tolist()):
            seen.setdefault(key, {field: np.array(batch[field][row]) for field in batch.fields})
        if len(seen) >= count:
            return seen
    raise AssertionError(f"only {len(seen)} of {count} items were ever drawn")


def counts(replay: Replay, table: str, keys: np.ndarray, draws: int, batch_size: int = 1000) -> np.ndarray:
    """How often each of the keys was drawn in about so many draws, int64 [len(keys)]."""
    place = {int(key): i for i, key in enumerate(keys)}
    found = np.zeros(len(keys), np.int64)
    with replay.learner(table, batch_size=batch_size, timeout=10) as learner:
        for _ in range(draws // batch_size):
            drawn, times = np.unique(learner.sample().keys, return_counts=True)
            for key, n in zip(drawn.tolist(), times.tolist(), strict=True):
                found[place[key]] += n
    return found
