"""The window's edges, as docs/semantics.md 2 states them, in a few lines: what the C must make of an episode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Episode:
    """observations has one more than the other lists; its last is the final one."""

    observations: list[float]
    actions: list[int]
    rewards: list[float]
    terminated: bool
    """else truncated"""

    def __len__(self) -> int:
        return len(self.actions)


@dataclass
class Item:
    obs: list[float]
    action: int
    reward: float
    discount: float
    length: int
    next_obs: list[float]
    usable: bool
    """whether next_obs means anything"""


def items_of(episode: Episode, stack: int, n: int, gamma: float) -> list[Item]:
    """The items of an episode, anchors in order."""
    length = len(episode)
    items = []
    for t in range(length):
        k = min(n, length - t)
        if k < n and not episode.terminated and n < stack:
            continue
        over = episode.terminated and t + k == length

        def frames(last: int) -> list[float]:
            return [episode.observations[max(0, last - stack + 1 + i)] for i in range(stack)]

        items.append(
            Item(
                obs=frames(t),
                action=episode.actions[t],
                reward=float(np.float32(sum(gamma**i * float(np.float32(episode.rewards[t + i])) for i in range(k)))),
                discount=0.0 if over else float(np.float32(gamma**k)),
                length=k,
                next_obs=frames(t + k),
                usable=not over or k == n,
            )
        )
    return items
