"""Atari games as the field preprocesses them (Mnih et al. 2015, Machado et al. 2018): 84 x 84 grey frames, one a step.

Each action is held for four frames of the game; what is seen is the maximum of the last two, for sprites that the
console drew in turns. Actions stick as the environment's id says, losing a life ends nothing, stacks are not made here.
"""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

FRAME_SKIP = 4
SIZE = 84

Frame = NDArray[np.uint8]

gym.register_envs(ale_py)
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # a banner per environment


def area_weights(source: int, target: int) -> NDArray[np.float32]:
    """What share of each of `target` cells each of `source` pixels covers, float32 [target, source]; rows sum to 1."""
    edges = np.linspace(0.0, source, target + 1)[:, np.newaxis]
    pixels = np.arange(source)
    covered = np.maximum(0.0, np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels))
    weights: NDArray[np.float32] = (covered * (target / source)).astype(np.float32)
    return weights


class Resize:
    """A grey screen uint8 [height, width] to uint8 [84, 84]: each pixel is the mean of the area that it covers."""

    def __init__(self, height: int, width: int) -> None:
        self._rows, self._columns = area_weights(height, SIZE), area_weights(width, SIZE).T

    def __call__(self, screen: Frame) -> Frame:
        mean = self._rows @ screen.astype(np.float32) @ self._columns
        return (mean + 0.5).astype(np.uint8)


class Frames(gym.Wrapper[Frame, Any, Frame, Any]):
    """A game that gives every frame as a grey screen, preprocessed."""

    def __init__(self, game: gym.Env[Frame, Any]) -> None:
        super().__init__(game)
        height, width = game.observation_space.shape or (0, 0)
        self._resize = Resize(height, width)
        self.observation_space = Box(0, 255, (SIZE, SIZE), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        screen, info = self.env.reset(seed=seed, options=options)
        return self._resize(screen), info

    def step(self, action: Any) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Up to four frames of the game: rewards are summed, the end of the episode ends it."""
        screen, reward, terminated, truncated, info = self.env.step(action)
        seen, total = screen, float(reward)
        for _ in range(FRAME_SKIP - 1):
            if terminated or truncated:
                break
            before = screen
            screen, reward, terminated, truncated, info = self.env.step(action)
            seen = np.maximum(before, screen)
            total += float(reward)
        return self._resize(seen), total, terminated, truncated, info


def make(name: str) -> Frames:
    """One game by Gymnasium's name, ALE/Pong-v5."""
    return Frames(gym.make(name, frameskip=1, obs_type="grayscale", disable_env_checker=True))


def make_vector(name: str, count: int) -> SyncVectorEnv:
    """`count` of them side by side; the step after an episode's last one resets."""
    return SyncVectorEnv([lambda: make(name)] * count)
