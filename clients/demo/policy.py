"""The greedy policy of published parameters, exploration, and evaluation. In numpy: actors need no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

OBSERVATION_SIZE = 4
ACTIONS = 2
OBSERVATION_SCALE = (1.0, 1.0, 5.0, 1.0)  # the angle stays within 0.21 rad, the others reach 1 to 3
LAYERS = ("layers.0", "layers.2", "layers.4")
"""the linear layers of agent.QNetwork by the names of their parameters; between them stand ReLUs"""


class Policy(Protocol):
    """Chooses actions."""

    def greedy(self, observations: npt.NDArray[Any]) -> IntArray:
        """The best action int64 [N] for each of the observations [N, ...]."""


class LinearPolicy:
    """Acts with the highest of agent.QNetwork's values."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        """`tensors`: the network's parameters by name, float32 arrays (out, in) and (out)."""
        weights = [(np.asarray(tensors[f"{name}.weight"]).T, np.asarray(tensors[f"{name}.bias"])) for name in LAYERS]
        first, bias = weights[0]
        scale = np.asarray(OBSERVATION_SCALE, np.float32)
        self._hidden = [(scale[:, np.newaxis] * first, bias), *weights[1:-1]]
        self._values = weights[-1]

    def values(self, observations: FloatArray) -> FloatArray:
        """Action values float32 [N, 2] of observations float32 [N, 4]."""
        x = observations
        for weight, bias in self._hidden:
            x = np.maximum(x @ weight + bias, 0.0)
        weight, bias = self._values
        values: FloatArray = x @ weight + bias
        return values

    def greedy(self, observations: FloatArray) -> IntArray:
        """The best action int64 [N] for each of the observations [N, 4]."""
        actions: IntArray = self.values(observations).argmax(axis=1)
        return actions


def epsilons(count: int, epsilon: float, alpha: float) -> FloatArray:
    """One exploration rate per environment, spread as in Ape-X: epsilon ** (1 + alpha * i / (N - 1)), [count]."""
    return np.power(epsilon, 1.0 + alpha * np.linspace(0.0, 1.0, count)).astype(np.float32)


def explore(
    policy: Policy | None, observations: npt.NDArray[Any], rates: FloatArray, actions: int, rng: np.random.Generator
) -> IntArray:
    """Epsilon-greedy actions int64 [N] below `actions`: row i of the N observations acts at random with rates[i].

    Without a policy every row does.
    """
    count = len(observations)
    random = rng.integers(actions, size=count)
    if policy is None:
        return random
    return np.where(rng.random(count) < rates, random, policy.greedy(observations))


def evaluate(policy: Policy, environment: str, episodes: int, seed: int) -> FloatArray:
    """Undiscounted returns float32 [episodes] of greedy episodes, run side by side from one seed."""
    environments = gym.make_vec(environment, num_envs=episodes)
    observations, _ = environments.reset(seed=seed)
    returns = np.zeros(episodes, dtype=np.float32)
    running = np.ones(episodes, dtype=np.bool_)
    while running.any():
        observations, rewards, terminated, truncated, _ = environments.step(policy.greedy(observations))
        returns += np.where(running, rewards, 0.0).astype(np.float32)
        running &= ~(terminated | truncated)
    environments.close()
    return returns
