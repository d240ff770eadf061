"""The double DQN agent: network, acting, loss and evaluation. Knows nothing of processes or replay."""

from __future__ import annotations

from typing import NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

OBSERVATION_SIZE = 4
ACTIONS = 2
OBSERVATION_SCALE = (1.0, 1.0, 5.0, 1.0)  # the angle stays within 0.21 rad, the others reach 1 to 3


class QNetwork(nn.Module):
    """Action values: observations float32 [B, 4] -> float32 [B, 2], in units of scaled reward.

    Every observation starts at about `initial_value`. Set it to the value of an episode that never ends and only
    failure has to be learned; from zero, values climb for thousands of updates and bury the small gaps between actions.
    """

    observation_scale: Tensor

    def __init__(self, hidden: int, initial_value: float) -> None:
        super().__init__()
        self.register_buffer("observation_scale", torch.tensor(OBSERVATION_SCALE), persistent=False)
        values = nn.Linear(hidden, ACTIONS)
        nn.init.constant_(values.bias, initial_value)
        self.layers = nn.Sequential(
            nn.Linear(OBSERVATION_SIZE, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), values
        )

    def forward(self, observations: Tensor) -> Tensor:
        """Values float32 [B, 2] of the raw observations float32 [B, 4]."""
        values: Tensor = self.layers(observations * self.observation_scale)
        return values


class Loss(NamedTuple):
    """What one batch says about the online network."""

    loss: Tensor
    """Importance-weighted mean Huber loss, a scalar that carries the gradient."""
    td_error: FloatArray
    """Temporal-difference errors [B], in units of scaled reward; their size is the priority."""


def epsilons(count: int, epsilon: float, alpha: float) -> FloatArray:
    """One exploration rate per environment, spread as in Ape-X: epsilon ** (1 + alpha * i / (N - 1)), [count]."""
    return np.power(epsilon, 1.0 + alpha * np.linspace(0.0, 1.0, count)).astype(np.float32)


@torch.inference_mode()
def greedy_actions(network: nn.Module, observations: FloatArray) -> IntArray:
    """The best action int64 [N] for each of the observations [N, 4]."""
    actions: IntArray = network(torch.from_numpy(observations)).argmax(dim=1).numpy()
    return actions


def explore(network: nn.Module, observations: FloatArray, rates: FloatArray, rng: np.random.Generator) -> IntArray:
    """Epsilon-greedy actions int64 [N]: row i of observations [N, 4] acts at random with probability rates[i]."""
    count = len(observations)
    random = rng.integers(ACTIONS, size=count)
    return np.where(rng.random(count) < rates, random, greedy_actions(network, observations))


def double_dqn_loss(
    online: nn.Module,
    target: nn.Module,
    *,
    obs: Tensor,
    action: Tensor,
    reward: Tensor,
    discount: Tensor,
    next_obs: Tensor,
    weights: Tensor,
    reward_scale: float,
) -> Loss:
    """Double DQN on n-step items: the online network picks the next action, the target network values it.

    obs and next_obs are float32 [B, 4], action any integer [B]; reward, discount and weights float32 [B].
    discount is gamma^k for an item of k steps and 0 where the episode terminated; a truncated episode bootstraps.
    """
    with torch.no_grad():
        next_action = online(next_obs).argmax(dim=1, keepdim=True)
        next_value = target(next_obs).gather(1, next_action).squeeze(1)
        goal = reward_scale * reward + discount * next_value
    value = online(obs).gather(1, action.long().unsqueeze(1)).squeeze(1)
    loss = (weights * nn.functional.smooth_l1_loss(value, goal, reduction="none")).mean()
    return Loss(loss, (goal - value.detach()).numpy())


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, rate: float) -> None:
    """Moves the target network's parameters the fraction `rate` of the way to the online network's."""
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast, rate)


def evaluate(network: nn.Module, environment: str, episodes: int, seed: int) -> FloatArray:
    """Undiscounted returns float32 [episodes] of greedy episodes, run side by side from one seed."""
    environments = gym.make_vec(environment, num_envs=episodes)
    observations, _ = environments.reset(seed=seed)
    returns = np.zeros(episodes, dtype=np.float32)
    running = np.ones(episodes, dtype=np.bool_)
    while running.any():
        observations, rewards, terminated, truncated, _ = environments.step(greedy_actions(network, observations))
        returns += np.where(running, rewards, 0.0).astype(np.float32)
        running &= ~(terminated | truncated)
    environments.close()
    return returns
