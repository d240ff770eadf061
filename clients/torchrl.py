"""A replay buffer with the interface of TorchRL's TensorDictReplayBuffer in any netreplay memory.

::

    buffer = NetreplayBuffer(capacity=100_000, batch_size=64, prioritized=True)
    buffer.extend(collected)                  # as a collector gives them: [T], or [num_envs, T]
    batch = buffer.sample()                   # "observation", "action", "next": {...}, "index", "priority_weight"
    loss(batch)["loss"].backward()
    buffer.update_tensordict_priority(batch)  # reads "td_error"

See netreplay/clients/transitions.py for how transitions become streams, and docs/adapters.md for what differs.
Importing this needs nothing; making a buffer needs tensordict, which TorchRL brings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from netreplay.clients.arguments import shown, whole
from netreplay.clients.replay import Replay
from netreplay.clients.transition_memory import TransitionMemory, Wanted
from netreplay.clients.transitions import Transitions
from netreplay.clients.updating import UpdateResult
from netreplay.errors import BadConfigError, BadCountError, ColumnError, MissingPackageError, NotYetError
from netreplay.spec import ColumnSpec

Columns = Mapping[str, ColumnSpec | None]

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDictBase


class NetreplayBuffer:
    """Transitions in, uniform or prioritized batches out. One thread at a time.

    `url` is that of a memory, "local:" (made here, of `capacity` transitions, when the first ones say what they are
    like), or an open Replay. Of a server, `table` may be left out where it has only one; its window and sampler are
    the server's, and `n_steps`, `gamma` and `prioritized` are compared where they are given. The columns are called
    like the keys `observation` and `action`; where there is only one, as the server likes. `seed` is of "local:"; None
    takes one from torch's global generator.

    Each call of `extend` ends its episodes, so that all of it is drawable at once. With `hold` they go on over calls:
    each observation is stored once, n-step returns reach over calls, and the two newest transitions of each environment
    wait for the next call, or `cut`. `eps` is added to priorities, whose `exponent` (TorchRL's alpha) is the table's.
    """

    def __init__(
        self,
        url: str | Replay = "local:",
        *,
        capacity: int = 100_000,
        batch_size: int | None = None,
        observation: Sequence[str] = ("observation",),
        action: Sequence[str] = ("action",),
        num_envs: int = 1,
        hold: bool = False,
        n_steps: int | None = None,
        gamma: float | None = None,
        prioritized: bool | None = None,
        exponent: float = 0.6,
        beta: float = 0.4,
        eps: float = 1e-8,
        priority_key: str = "td_error",
        table: str | None = None,
        auth: str | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
        timeout: float = 10.0,
    ) -> None:
        try:
            import tensordict  # noqa: F401 - so that what is missing is said here
        except ImportError as error:
            raise MissingPackageError(
                "netreplay.clients.torchrl needs TorchRL: pip install 'netreplay[torchrl]'", package="torchrl"
            ) from error
        self._url, self._capacity, self._window, self._prioritized = url, capacity, (n_steps, gamma), prioritized
        self._names = (tuple(observation), tuple(action))
        for name, keys in (("observation", observation), ("action", action)):
            if isinstance(keys, str) or not keys:
                raise BadConfigError(f"{name}: {shown(keys)} is not a sequence of keys", field=name, value=keys)
        self._exponent, self._table, self._auth, self._seed, self._timeout = exponent, table, auth, seed, timeout
        self.batch_size = batch_size
        self.num_envs = whole(num_envs, "num_envs", 1, 2**20)
        self.hold, self.beta, self.eps, self.priority_key, self.device = hold, beta, eps, priority_key, device
        self._memory: TransitionMemory | None = None
        if url != "local:":
            self._open(*(dict.fromkeys(keys) for keys in self._names))

    # ---- adding ----

    def extend(self, data: TensorDictBase) -> torch.Tensor:
        """Adds transitions [T], or [num_envs, T] in the order of time; the new items' indices, int64, in the order in
        which they became drawable.

        One environment's T may run over ends of episodes, and over environments laid one after the other. Truncated is
        what is done and not terminated. Returns when all is stored.
        """
        import torch

        rows = self._rows(data)
        for t in range(rows.reward.shape[1]):
            self._add(rows, t)
        memory = self._opened("extend")
        return torch.from_numpy(memory.flush() if self.hold else memory.cut())

    def add(self, data: TensorDictBase) -> None:
        """Adds one transition of one environment, [], or of each, [num_envs]; it is held as with `hold`."""
        shape = tuple(data.shape)
        if shape != (self.num_envs,) and (shape or self.num_envs > 1):
            raise BadCountError(f"add: shape {shape} is not [{self.num_envs}], one transition of each", value=shape)
        self._add(self._rows(data), 0)

    def _add(self, rows: Transitions, t: int) -> None:
        obs, action, next_obs = (
            {name: value[:, t] for name, value in columns.items()} for columns in (rows.obs, rows.action, rows.next_obs)
        )
        result = (rows.reward[:, t], rows.terminated[:, t], rows.truncated[:, t])
        self._opened("add").add(Transitions(obs, action, *result, next_obs))

    def _rows(self, data: TensorDictBase) -> Transitions:
        """[num_envs, T] of everything; opens the memory if these are the first."""
        shape = tuple(data.shape)
        if self.num_envs == 1:
            lead: tuple[int, int] = (1, int(np.prod(shape)))
        elif len(shape) in (1, 2) and shape[0] == self.num_envs:
            lead = (self.num_envs, shape[1] if len(shape) == 2 else 1)
        else:
            text = f"data: shape {shape} is not [{self.num_envs}, T]: an environment each row, time within"
            raise BadCountError(text, value=shape)

        def array(key: Any) -> NDArray[Any]:
            tensor = data.get(key, None)
            if tensor is None:
                raise ColumnError(f"key {key!r}: is missing; there are {shown(list(data.keys()))}", column=str(key))
            values: NDArray[Any] = tensor.detach().cpu().numpy()
            return values.reshape(*lead, *values.shape[len(shape) :])

        def flag(name: str) -> NDArray[np.bool_]:
            return array(("next", name)).astype(np.bool_).reshape(lead)

        ends = data.get("next", {}).keys()
        done = flag("done")
        truncated = flag("truncated") if "truncated" in ends else np.zeros(lead, np.bool_)
        terminated = flag("terminated") if "terminated" in ends else done & ~truncated
        rows = Transitions(
            obs={name: array(name) for name in self._names[0]},
            action={name: array(name) for name in self._names[1]},
            reward=array(("next", "reward")).reshape(lead),
            terminated=terminated,
            truncated=(done | truncated) & ~terminated,
            next_obs={name: array(("next", name)) for name in self._names[0]},
        )
        if self._memory is None:
            columns = (
                {name: ColumnSpec(str(value.dtype), value.shape[2:]) for name, value in arrays.items()}
                for arrays in (rows.obs, rows.action)
            )
            self._open(*columns)
        return rows

    # ---- sampling ----

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """A TensorDict [B] of the keys of `observation` and `action`, "index", and "next": {observations, "reward",
        "done", "terminated"}, the last three [B, 1]; with return_info, also {"index", "priority_weight"}.

        "done" is "terminated": whether a transition was truncated makes no difference to its value. N-step tables add
        "steps_to_next_obs" [B, 1], which TorchRL's value estimators read; prioritized ones "priority_weight" [B],
        which its losses read.
        """
        from tensordict import TensorDict

        size = self.batch_size if batch_size is None else batch_size
        if size is None:
            raise BadCountError("batch_size: is missing; give it here or to the buffer", field="batch_size", value=None)
        memory = self._opened("sample")
        batch = memory.sample(size).torch()
        terminated = (batch["discount"] == 0).unsqueeze(-1)
        following = {
            **memory.observations(batch, "next_obs"),
            "reward": batch["reward"].unsqueeze(-1),
            "done": terminated,
            "terminated": terminated.clone(),
        }
        info: dict[str, Any] = {"index": batch.keys}
        if memory.prioritized:
            info["priority_weight"] = batch.weights(self.beta)
        data: dict[str, Any] = {**memory.observations(batch, "obs"), **memory.actions(batch), "next": following, **info}
        if memory.spec.window.n > 1:
            data["steps_to_next_obs"] = batch["length"].unsqueeze(-1)
        result = TensorDict(data, batch_size=[size])
        if self.device is not None:
            result = result.to(self.device)
        return (result, info) if return_info else result

    # ---- priorities ----

    def update_tensordict_priority(self, data: TensorDictBase) -> UpdateResult | None:
        """Sets the priorities of a sample from its "index" and `priority_key` [B] or [B, 1]; nothing of a table without
        priorities. See update_priority.
        """
        if not self._opened("update_tensordict_priority").prioritized:
            return None
        priority = data.get(self.priority_key, None)
        if priority is None:
            text = f"key {self.priority_key!r}: is missing; the loss writes it, or set another as priority_key"
            raise ColumnError(text, column=self.priority_key)
        return self.update_priority(data.get("index"), priority)

    def update_priority(self, index: Any, priority: Any) -> UpdateResult:
        """Sets priorities [B] or [B, 1], finite and >= 0, to which `eps` is added; a sum over what was applied, stale,
        refused, superseded, and one outcome per index.
        """
        import torch

        values = torch.as_tensor(priority).detach().to("cpu", torch.float64).reshape(-1) + self.eps
        keys = torch.as_tensor(index).detach().to("cpu").reshape(-1)
        return self._opened("update_priority").update_priorities(keys.numpy(), values.numpy())

    # ---- state ----

    def __len__(self) -> int:
        """Transitions that can be drawn now."""
        return 0 if self._memory is None else self._memory.info().size

    @property
    def stats(self) -> dict[str, int | float | str]:
        """The table's numbers; see netreplay.TableInfo."""
        return self._opened("stats").info()._asdict()

    @property
    def write_count(self) -> int:
        """Transitions that became drawable since the last `empty`."""
        return 0 if self._memory is None else self._memory.info().inserted

    def state_dict(self) -> NoReturn:
        """NotYetError: a memory keeps its experience itself."""
        raise NotYetError("state_dict: a netreplay memory keeps its experience itself; leave the buffer out")

    def cut(self) -> None:
        """Ends every environment's episode with the transition added last; after it all can be drawn."""
        if self._memory is not None:
            self._memory.cut()

    def empty(self) -> None:
        """Lets every item of the table leave, of other actors too."""
        if self._memory is not None:
            self._memory.reset()

    # ---- opening, closing ----

    def _opened(self, what: str) -> TransitionMemory:
        if self._memory is None:
            text = f"{what}: nothing was added yet, and the first transitions say what a 'local:' memory is made of"
            raise BadConfigError(text, field="url", value=self._url)
        return self._memory

    def _open(self, observation: Columns, action: Columns) -> None:
        import torch

        n_steps, gamma = self._window
        seed = self._seed
        if seed is None and self._url == "local:":
            seed = int(torch.randint(2**63 - 1, ()).item())
        self._memory = TransitionMemory(
            self._url,
            Wanted(observation, action, self._capacity, n_steps, gamma, self._prioritized, self._exponent),
            table=self._table,
            num_envs=self.num_envs,
            auth=self._auth,
            seed=seed,
            timeout=self._timeout,
        )

    def close(self) -> None:
        """Stores what is held and closes the memory that this opened."""
        if self._memory is not None:
            self._memory.close()

    def __enter__(self) -> NetreplayBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<NetreplayBuffer of {self._url}>"
