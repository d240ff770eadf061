"""From transitions, as RL libraries hand them to a replay buffer, to the streams of steps that an actor takes.

A transition is (obs, action, reward, next_obs, over or not); a stream holds each observation once, and an episode ends
with one that is only an observation. So each environment is one stream, a transition's `next_obs` is the next one's
`obs`, and only the `next_obs` that no transition follows is stored as the final observation. Whether one follows is
known at the next call: the newest transition of each environment is held until then. Where an environment's next `obs`
is not, bit for bit, the `next_obs` before it (it was reset outside, or the transitions are in no order), the episode
ends there as truncated. So nothing is lost or made up, whatever the order; an n-step return ends there too.

The transition before the held one waits as well, for the observation that completes its window. So of an episode that
goes on, the two newest transitions cannot be drawn yet; `cut` ends the episodes and makes everything drawable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from netreplay.clients.actor import Actor

Columns = Mapping[str, NDArray[Any]]


class Transitions(NamedTuple):
    """One transition of each of N environments."""

    obs: Columns
    """each [N, *shape]"""
    action: Columns
    """each [N, *shape]"""
    reward: NDArray[Any]
    """[N]"""
    terminated: NDArray[np.bool_]
    """[N]: nothing follows, not even in theory"""
    truncated: NDArray[np.bool_]
    """[N]: the episode ends here, its value does not"""
    next_obs: Columns
    """each [N, *shape]; of the same episode also where it ends"""

    def copy(self) -> Transitions:
        """The same in memory of its own."""
        obs, action, next_obs = (
            {name: np.array(value) for name, value in columns.items()}
            for columns in (self.obs, self.action, self.next_obs)
        )
        return Transitions(
            obs, action, np.array(self.reward), np.array(self.terminated), np.array(self.truncated), next_obs
        )


def differing(one: Columns, other: Columns) -> NDArray[np.bool_]:
    """Which rows [N] of the columns are not the same bits: NaN equals itself, and -0.0 is not 0.0."""
    different: NDArray[np.bool_] = np.zeros(len(next(iter(one.values()))), np.bool_)
    for name, left in one.items():
        right = np.asarray(other[name], left.dtype)
        if left.size:
            rows = len(left)
            bits = (np.ascontiguousarray(side).reshape(rows, -1).view(np.uint8) for side in (left, right))
            different |= np.not_equal(*bits).any(axis=1)
    return different


class TransitionWriter:
    """Writes transitions through an actor, which it does not own. One thread at a time.

    The actor has one environment, or several with autoreset="same_step". When a call raises, what was held is held
    still, so that the call can be made again.
    """

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._held: Transitions | None = None
        self._appended = False  # of a single environment: the held step is in, its final observation is not

    @property
    def held(self) -> int:
        """Transitions that wait for the next call."""
        return 0 if self._held is None else self._actor.num_envs

    def add(self, new: Transitions) -> None:
        """One transition of every environment; copies what it keeps."""
        if self._held is not None:
            self._write(self._held, differing(self._held.next_obs, new.obs))
        self._held = new.copy()

    def cut(self) -> None:
        """Ends every episode with what was added last, as truncated where it is not over; so all of it is drawable."""
        if self._held is not None:
            self._write(self._held, np.ones(self._actor.num_envs, np.bool_))
        self._held = None

    def _write(self, held: Transitions, broken: NDArray[np.bool_]) -> None:
        truncated = held.truncated | (broken & ~held.terminated)
        over = held.terminated | truncated
        if self._actor.num_envs > 1:
            final: dict[str, Any] = {"final": held.next_obs, "final_mask": over} if over.any() else {}
            self._actor.append(
                reward=held.reward,
                terminated=held.terminated,
                truncated=truncated,
                **final,
                **held.obs,
                **held.action,
            )
            return
        if not self._appended:
            columns = {name: value[0] for name, value in (*held.obs.items(), *held.action.items())}
            self._actor.append(
                reward=float(held.reward[0]),
                terminated=bool(held.terminated[0]),
                truncated=bool(truncated[0]),
                **columns,
            )
        if over[0]:
            self._appended = True
            self._actor.end(**{name: value[0] for name, value in held.next_obs.items()})
        self._appended = False
