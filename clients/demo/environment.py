"""What the demo plays: CartPole, or any game of the Arcade Learning Environment. All that differs between them is here.

What only one of them needs is imported only for it: CartPole's actors do without PyTorch and ale-py.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from netreplay.clients.demo.config import ENVIRONMENT, Config
from netreplay.errors import BadConfigError

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

    from netreplay.clients.demo.agent import Network
    from netreplay.clients.demo.policy import Policy

_PREFIX = "ALE/"
_WELL_KNOWN = ["ALE/Pong-v5", "ALE/Breakout-v5", "ALE/SpaceInvaders-v5"]


class Environment(Protocol):
    """One of them."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Modules beyond netreplay's own dependencies."""

    def configure(self, name: str) -> dict[str, Any]:
        """The fields of Config in which it differs from the defaults; BadConfigError when there is no such name."""

    def make_vector(self, config: Config, count: int) -> VectorEnv[Any, Any, Any]:
        """`count` environments side by side, with NEXT_STEP autoreset."""

    def network(self, config: Config, gamma: float) -> Network:
        """A new network that gives action values."""

    def policy(self, tensors: Mapping[str, Any]) -> Policy:
        """The greedy policy of such a network's parameters, float32 arrays by name."""


class CartPole:
    """CartPole-v1: learned in seconds."""

    needs = ("torch", "gymnasium", "matplotlib", "rich")

    def configure(self, name: str) -> dict[str, Any]:
        return {"environment": name}

    def make_vector(self, config: Config, count: int) -> VectorEnv[Any, Any, Any]:
        import gymnasium as gym

        return gym.make_vec(config.environment, num_envs=count)

    def network(self, config: Config, gamma: float) -> Network:
        from netreplay.clients.demo.agent import QNetwork

        return QNetwork(config.hidden, config.endless_value(gamma))

    def policy(self, tensors: Mapping[str, Any]) -> Policy:
        from netreplay.clients.demo.policy import LinearPolicy

        return LinearPolicy(tensors)


class Atari:
    """ALE/*: real frames in real amounts. Not learned within minutes on a few cores, so nothing is evaluated."""

    needs = (*CartPole.needs, "ale_py")

    def configure(self, name: str) -> dict[str, Any]:
        import gymnasium as gym

        from netreplay.clients.demo.atari import FRAME_SKIP, make

        games = [known for known in gym.registry if known.startswith(_PREFIX)]
        if name not in games:
            raise _unknown(name, get_close_matches(name, games) or _WELL_KNOWN)
        game = make(name)
        actions = int(game.action_space.n)  # type: ignore[attr-defined]
        game.close()
        return {
            "environment": name,
            "table": "atari",
            "actions": actions,
            "seconds": 60.0,
            "environments": 8,
            "reward_limit": 1.0,
            "frame_skip": FRAME_SKIP,
            "flush_interval": 25,
            "batch_size": 32,
            "learning_rate": 1e-4,
            "final_learning_rate": 1e-4,
            "adam_epsilon": 1.5e-4,
            "reward_scale": 1.0,
            "target_rate": 0.005,
            "publish_interval": 10,
            "items_per_update": 32.0,
            "evaluation_interval": 0,
        }

    def make_vector(self, config: Config, count: int) -> VectorEnv[Any, Any, Any]:
        from netreplay.clients.demo.atari import make_vector

        return make_vector(config.environment, count)

    def network(self, config: Config, gamma: float) -> Network:  # noqa: ARG002
        from netreplay.clients.demo.convolution import ConvNetwork

        return ConvNetwork(config.actions)

    def policy(self, tensors: Mapping[str, Any]) -> Policy:
        from netreplay.clients.demo.convolution import ConvPolicy

        return ConvPolicy.of(tensors)


def _unknown(name: str, games: list[str]) -> BadConfigError:
    return BadConfigError(
        f"--env: there is no {name!r}; {ENVIRONMENT} and Atari games work, such as {', '.join(games)}", value=name
    )


def environment_of(name: str) -> Environment:
    """The entry that plays `name`; BadConfigError when none does."""
    if name == ENVIRONMENT:
        return CartPole()
    if name.startswith(_PREFIX):
        return Atari()
    raise _unknown(name, _WELL_KNOWN)


def configure(name: str, **chosen: Any) -> Config:
    """The configuration for playing `name`, with what was chosen; BadConfigError, with the way out, when it cannot."""
    environment = environment_of(name)
    missing = [module for module in environment.needs if find_spec(module) is None]
    if missing:
        raise BadConfigError(f"demo: {', '.join(missing)} cannot be imported; pip install 'netreplay[demo]'")
    return Config(**{**environment.configure(name), **chosen})


class Stack:
    """The last `depth` observations of each environment: what the table's view gives a learner as `obs`."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._frames: npt.NDArray[Any] | None = None

    def push(self, observations: npt.NDArray[Any], begins: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """Observations [N, ...] -> [N, depth, ...], oldest first; as they are when depth is 1. Where an episode
        `begins` [N], its first observation stands `depth` times. Good until the next call.
        """
        if self._depth == 1:
            return observations
        repeated = observations[:, np.newaxis]
        if self._frames is None:
            self._frames = np.repeat(repeated, self._depth, axis=1)
        self._frames[:, :-1] = self._frames[:, 1:]
        self._frames[:, -1] = observations
        self._frames[begins] = repeated[begins]
        return self._frames
