"""The double DQN agent: CartPole's network, loss and target. Knows nothing of processes or replay."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from netreplay.clients.demo.policy import ACTIONS, OBSERVATION_SCALE, OBSERVATION_SIZE, FloatArray, LinearPolicy, Policy


class Network(nn.Module):
    """Action values: observations [B, ...] -> float32 [B, actions]."""

    @abstractmethod
    def policy(self) -> Policy:
        """Its greedy policy; shares the parameters."""


class QNetwork(Network):
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

    def policy(self) -> LinearPolicy:
        """Its greedy policy; shares the parameters."""
        return LinearPolicy({name: tensor.numpy() for name, tensor in self.state_dict().items()})


class Loss(NamedTuple):
    """What one batch says about the online network."""

    loss: Tensor
    """Importance-weighted mean Huber loss, a scalar that carries the gradient."""
    td_error: FloatArray
    """Temporal-difference errors [B], in units of scaled reward; their size is the priority."""


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

    obs and next_obs are what the networks take, [B, ...], action any integer [B]; the others float32 [B].
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
