"""A replay buffer for Stable-Baselines3's off-policy algorithms (DQN, SAC, TD3, DDPG) in any netreplay memory.

::

    DQN("MlpPolicy", env, replay_buffer_class=NetreplayBuffer, replay_buffer_kwargs={"n_steps": 3, "gamma": 0.99})

Each environment is one stream; see netreplay/clients/transitions.py for how transitions become streams, and
docs/adapters.md for what differs from Stable-Baselines3's own buffer.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from netreplay.clients.batch import Batch
from netreplay.clients.replay import Replay
from netreplay.clients.transition_memory import TransitionMemory, Wanted
from netreplay.clients.transitions import Transitions
from netreplay.clients.updating import UpdateResult
from netreplay.errors import BadConfigError, MissingPackageError, NotPicklableError
from netreplay.spec import ColumnSpec

try:
    import torch
    from gymnasium import spaces
    from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
    from stable_baselines3.common.type_aliases import ReplayBufferSamples
    from stable_baselines3.common.vec_env import VecNormalize
except ImportError as error:
    raise MissingPackageError(
        "netreplay.clients.stable_baselines3 needs Stable-Baselines3: pip install 'netreplay[sb3]'",
        package="stable-baselines3",
    ) from error


class PrioritizedSamples(ReplayBufferSamples):
    """Samples that also name their items. Stable-Baselines3's own algorithms ignore `keys` and `weights`."""

    keys: NDArray[np.int64]
    """[B], for update_priorities"""
    weights: torch.Tensor
    """float32 [B, 1], importance weights, the largest of the batch 1"""


class NetreplayBuffer(ReplayBuffer):
    """Give it as `replay_buffer_class`; the keyword arguments are `replay_buffer_kwargs`.

    `url` is that of a memory, "local:" (made here, of `buffer_size` transitions), or an open Replay. Of a server,
    `table` may be left out where it has only one; its window and sampler are the server's, and `n_steps`, `gamma` and
    `prioritized` are compared where they are given. `n_steps` above 1 wants the algorithm's gamma as `gamma`. `seed`
    is of "local:"; None takes one from numpy's global generator, which the algorithm's `seed` seeds.

    With `prioritized`, new transitions get the table's largest priority, `sample` gives PrioritizedSamples, and
    update_priorities sets new ones. An algorithm that does neither (all of Stable-Baselines3's) draws uniformly then.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        url: str | Replay = "local:",
        table: str | None = None,
        auth: str | None = None,
        n_steps: int | None = None,
        gamma: float | None = None,
        prioritized: bool | None = None,
        exponent: float = 0.6,
        beta: float = 0.4,
        seed: int | None = None,
        timeout: float = 10.0,
    ) -> None:
        if optimize_memory_usage:
            text = "optimize_memory_usage: is always on here, each observation is stored once; leave it False"
            raise BadConfigError(text, field="optimize_memory_usage", value=True)
        if isinstance(observation_space, spaces.Dict | spaces.Tuple):
            text = f"observation_space: {type(observation_space).__name__} is not supported; one array is wanted"
            raise BadConfigError(text, field="observation_space", value=observation_space)
        # Past ReplayBuffer's own __init__, which would take the arrays that netreplay stands in for.
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.optimize_memory_usage = False
        self.handle_timeout_termination = handle_timeout_termination
        self.beta = beta
        """of the importance weights; may be changed at any time"""
        if seed is None and url == "local:":
            seed = int(np.random.randint(2**63 - 1, dtype=np.int64))  # noqa: NPY002 - the one that SB3 seeds
        self._action_dtype = np.dtype(self._maybe_cast_dtype(action_space.dtype))
        self._memory = TransitionMemory(
            url,
            Wanted(
                observation={"obs": ColumnSpec(str(np.dtype(observation_space.dtype)), self.obs_shape)},
                action={"action": ColumnSpec(str(self._action_dtype), (self.action_dim,))},
                capacity=buffer_size,
                n_steps=n_steps,
                gamma=gamma,
                prioritized=prioritized,
                exponent=exponent,
            ),
            table=table,
            num_envs=n_envs,
            auth=auth,
            seed=seed,
            timeout=timeout,
        )
        self._window = self._memory.spec.window

    def add(
        self,
        obs: NDArray[Any],
        next_obs: NDArray[Any],
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """One transition of every environment; next_obs is the terminal observation where done, as SB3 passes it."""
        count, dtype = self.n_envs, self.observation_space.dtype
        timeouts = [self.handle_timeout_termination and bool(info.get("TimeLimit.truncated", False)) for info in infos]
        over = np.asarray(done, np.bool_).reshape(count)
        truncated = over & np.asarray(timeouts, np.bool_)
        shape = (count, *self.obs_shape)
        self._memory.add(
            Transitions(
                obs={"obs": np.asarray(obs, dtype).reshape(shape)},
                action={"action": np.asarray(action, self._action_dtype).reshape(count, self.action_dim)},
                reward=np.asarray(reward, np.float32).reshape(count),
                terminated=over & ~truncated,
                truncated=truncated,
                next_obs={"obs": np.asarray(next_obs, dtype).reshape(shape)},
            )
        )

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """A batch, observations [B, *shape], the others [B, 1] (actions [B, action_dim]), normalized as `env` says.

        `dones` are terminations only. `discounts` (gamma^k of a return over k steps) come with n-step tables.
        """
        batch = self._memory.sample(batch_size)
        discounts = None
        if self._window.n > 1:
            discounts = np.power(np.float32(self._window.gamma), batch["length"], dtype=np.float32).reshape(-1, 1)
        samples = ReplayBufferSamples(
            observations=self._tensor(self._normalize_obs(batch["obs"], env)),
            actions=self._tensor(batch["action"]),
            next_observations=self._tensor(self._normalize_obs(batch["next_obs"], env)),
            dones=self._tensor((batch["discount"] == 0).astype(np.float32).reshape(-1, 1)),
            rewards=self._tensor(self._returns(batch, env)),
            discounts=None if discounts is None else self._tensor(discounts),
        )
        if not self._memory.prioritized:
            return samples
        named = PrioritizedSamples(*samples)
        named.keys = batch.keys
        named.weights = self._tensor(batch.weights(self.beta).reshape(-1, 1))
        return named

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.tensor(array, device=self.device)  # a copy, so that the batch's buffer can be used again

    def _returns(self, batch: Batch, env: VecNormalize | None) -> NDArray[np.float32]:
        reward: NDArray[np.float32] = batch["reward"].reshape(-1, 1)
        if env is None or self._window.n == 1:
            return self._normalize_reward(reward, env)
        if not env.norm_reward:
            return reward
        # A return is normalized by the scale of its rewards; clip_reward is of single rewards, and those are gone.
        return (reward / np.sqrt(env.ret_rms.var + env.epsilon)).astype(np.float32)

    def update_priorities(self, keys: Any, priorities: Any) -> UpdateResult:
        """Sets raw priorities [B] (finite, >= 0) of samples' `keys`; the counts, and one outcome per key."""
        return self._memory.update_priorities(keys, priorities)

    def size(self) -> int:
        """Transitions that can be drawn now."""
        return self._memory.info().size

    def cut(self) -> None:
        """Ends every environment's episode with the transition added last, as truncated where it is not over.

        After it all that was added can be drawn; without, the two newest transitions of each environment wait.
        """
        self._memory.cut()

    def reset(self) -> None:
        """Empties the table, of other actors' items too."""
        self._memory.reset()

    def close(self) -> None:
        """Stores what is held and closes the memory that this opened."""
        self._memory.close()

    def __reduce__(self) -> NoReturn:
        raise NotPicklableError("a buffer in a netreplay memory is not saved with the model: the memory keeps it")
