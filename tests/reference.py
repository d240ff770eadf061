"""The window's edges, as docs/semantics.md 2 states them, in a few lines: what the C must make of an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from netreplay import Window


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


def pieces_of(actions: int, window: Window) -> list[tuple[int, int]]:
    """First step and real steps of the sequences of an episode of so many actions."""
    length, stride = window.length or 0, window.stride or window.length or 0
    found = []
    first, covered = window.start, window.start
    while first + length <= actions:
        found.append((first, length))
        covered = first + length
        first += stride
    if covered < actions and first < actions:
        if window.end == "pad":
            found.append((first, actions - first))
        elif window.end == "shift":
            first = max(window.start, actions - length)
            found.append((first, actions - first))
    return found


def sequences_of(episode: Episode, window: Window) -> list[dict[str, Any]]:
    """The sequences of an episode as rows show them, in the order of their first steps."""
    made = []
    steps = window.length or 0
    for first, real in pieces_of(len(episode), window):
        earliest = max(0, first - window.stack + 1)  # of the observations that the item holds
        lead = 0 if window.pad == "tail" else steps - real

        def frame(at: int, earliest: int = earliest, last: int = first + real) -> float:
            return episode.observations[min(max(at, earliest), last)]

        row: dict[str, Any] = {name: [] for name in ("obs", "next_obs", "action", "reward", "terminated", "truncated")}
        mask = []
        for place in range(steps):
            t = first + place - lead
            mask.append(first <= t < first + real)
            done = mask[-1] and t == len(episode) - 1
            row["obs"].append([frame(t - window.stack + 1 + i) for i in range(window.stack)])
            row["next_obs"].append([frame(t - window.stack + 2 + i) for i in range(window.stack)])
            row["action"].append(episode.actions[t] if mask[-1] else 0)
            row["reward"].append(episode.rewards[t] if mask[-1] else 0.0)
            row["terminated"].append(done and episode.terminated)
            row["truncated"].append(done and not episode.terminated)
        made.append({**row, "mask": mask, "length": real, "timestep": first})
    return made


def returns_of(episode: Episode, first: int, real: int, n: int, gamma: float) -> list[tuple[float, float, int]]:
    """Reward, discount, length of the n-step return of each of the `real` steps from `first` on."""
    found = []
    for t in range(first, first + real):
        k = min(n, first + real - t)
        over = episode.terminated and t + k == len(episode)
        total = sum(gamma**i * float(np.float32(episode.rewards[t + i])) for i in range(k))
        found.append((float(np.float32(total)), 0.0 if over else float(np.float32(gamma**k)), k))
    return found
