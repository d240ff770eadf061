"""A table of transitions behind any address: what the adapters to other libraries' replay buffers share.

It owns an actor, a learner for each batch size, and the connection where it made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from netreplay.clients.actor import Actor
from netreplay.clients.batch import Batch
from netreplay.clients.connect import connect
from netreplay.clients.learner import Learner
from netreplay.clients.replay import Replay, TableInfo
from netreplay.clients.transitions import Columns, Transitions, TransitionWriter
from netreplay.clients.updating import UpdateResult
from netreplay.errors import BadConfigError, Closed, NoTableError, SpecError
from netreplay.spec import WEIGHTED_SAMPLERS, ColumnSpec, Spec, StoreSpec, TableSpec, Window

LOCAL = "transitions"
"""store and table of a memory that is made here"""


class Wanted(NamedTuple):
    """What the user asked for; None is left to the server, and "local:" takes the default."""

    observation: Mapping[str, ColumnSpec | None]
    """columns in order, None where any will do; the names count only where there are several"""
    action: Mapping[str, ColumnSpec | None]
    capacity: int
    """items, of "local:" """
    n_steps: int | None
    """1"""
    gamma: float | None
    """0.99"""
    prioritized: bool | None
    """False"""
    exponent: float
    """of the priorities, of "local:" """

    def spec(self, num_envs: int) -> Spec:
        """Of a memory in this process."""
        window = Window(n=1 if self.n_steps is None else self.n_steps, gamma=0.99 if self.gamma is None else self.gamma)
        sampler = "prioritized" if self.prioritized else "uniform"
        table = TableSpec(LOCAL, self.capacity, sampler=sampler, exponent=self.exponent, window=window)
        observation, action = (
            {name: column for name, column in columns.items() if column is not None}
            for columns in (self.observation, self.action)
        )
        store = StoreSpec(observation, action, streams=num_envs)
        return Spec({LOCAL: store}, {LOCAL: table})


class TransitionMemory:
    """Transitions in, batches out. One thread at a time."""

    def __init__(
        self,
        where: str | Replay,
        wanted: Wanted,
        *,
        table: str | None,
        num_envs: int,
        auth: str | None,
        seed: int | None,
        timeout: float,
    ) -> None:
        self._owned: Replay | None = None
        if isinstance(where, Replay):
            if seed is not None:
                raise BadConfigError(f"seed: {seed} comes too late for {where!r}, which is open", value=seed)
            self.replay = where
        elif where == "local:":
            self.replay = self._owned = connect(where, spec=wanted.spec(num_envs), seed=seed, timeout=timeout)
        else:
            self.replay = self._owned = connect(where, auth=auth, timeout=timeout, seed=seed)
        self._num_envs = num_envs
        self._timeout = timeout
        self._learners: dict[int, Learner] = {}
        self._actor: Actor | None = None
        self._writer: TransitionWriter | None = None
        self._closed = False
        try:
            self.table = self._only_table() if table is None else self.replay.table(table).name
            self.spec = self.replay.spec.tables[self.table]
            self._check(wanted)
            store = self.replay.spec.stores[self.spec.store]
            self._observation = self._names(wanted.observation, store.observation, "observation")
            self._action = self._names(wanted.action, store.action, "action")
        except BaseException:
            self.close()
            raise

    def _only_table(self) -> str:
        tables = list(self.replay.spec.tables)
        if len(tables) != 1:
            raise NoTableError(f"table: which of {', '.join(tables)} is wanted? Name it with table=", value=None)
        return tables[0]

    def _check(self, wanted: Wanted) -> None:
        """Refuses what contradicts the table."""
        window, path = self.spec.window, f"table.{self.table}"
        asked = {"n": wanted.n_steps, "gamma": wanted.gamma, "stack": 1}
        for name, value in asked.items():
            if value is not None and value != getattr(window, name):
                text = f"{path}.window.{name}: is {getattr(window, name)} at the server, and {value} is wanted"
                raise SpecError(text, path=f"{path}.window.{name}", value=value)
        if window.gamma == 0:  # the discount would not tell which items terminated
            raise SpecError(f"{path}.window.gamma: 0.0 is not above 0", path=f"{path}.window.gamma", value=0.0)
        if wanted.prioritized is not None and wanted.prioritized != self.prioritized:
            text = (
                f"{path}.sampler: is {self.spec.sampler} at the server, and prioritized={wanted.prioritized} is wanted"
            )
            raise SpecError(text, path=f"{path}.sampler", value=self.spec.sampler)

    def _names(
        self, wanted: Mapping[str, ColumnSpec | None], held: Mapping[str, ColumnSpec], kind: str
    ) -> dict[str, str]:
        """From the caller's names to the store's: the only one whatever it is called, several by name."""
        alone = len(wanted) == len(held) == 1
        names = dict(zip(wanted, held, strict=True)) if alone else {name: name for name in wanted}
        path = f"store.{self.spec.store}.{kind}"
        if sorted(names.values()) != sorted(held):
            text = f"{path}: the server's columns are {', '.join(held)}, and {', '.join(wanted)} are wanted"
            raise SpecError(text, path=path, value=list(wanted))
        for name, column in wanted.items():
            if column is not None and held[names[name]] != column:
                at = f"{path}.{names[name]}"
                raise SpecError(f"{at}: is {held[names[name]]} at the server, not {column}", path=at, value=column)
        return names

    @property
    def prioritized(self) -> bool:
        """whether draws have weights and priorities matter"""
        return self.spec.sampler in WEIGHTED_SAMPLERS

    def add(self, new: Transitions) -> None:
        """One transition of every environment; see TransitionWriter. The first opens the streams."""
        self._check_open()
        if self._actor is None or self._writer is None:
            autoreset = "same_step" if self._num_envs > 1 else None
            self._actor = self.replay.actor(
                self.spec.store, num_envs=self._num_envs, autoreset=autoreset, timeout=self._timeout
            )
            self._writer = TransitionWriter(self._actor)
        self._writer.add(
            new._replace(
                obs={self._observation[name]: value for name, value in new.obs.items()},
                next_obs={self._observation[name]: value for name, value in new.next_obs.items()},
                action={self._action[name]: value for name, value in new.action.items()},
            )
        )

    def cut(self) -> NDArray[np.int64]:
        """Makes all that was added drawable, see TransitionWriter; the new keys as of `flush`."""
        if self._writer is not None:
            self._writer.cut()
        return self.flush()

    def flush(self) -> NDArray[np.int64]:
        """Waits until what was formed is stored; the keys formed since the last call, int64 [items], in that order."""
        self._check_open()
        return np.empty(0, np.int64) if self._actor is None else self._actor.flush()

    def sample(self, batch_size: int) -> Batch:
        """A batch as numpy arrays; waits at most the timeout, and its error says what for."""
        self._check_open()
        learner = self._learners.get(batch_size)
        if learner is None:
            learner = self.replay.learner(self.table, batch_size=batch_size, timeout=self._timeout)
            self._learners[batch_size] = learner
        return learner.sample()

    def observations(self, batch: Batch, field: str) -> Columns:
        """`field` ("obs" or "next_obs") of a batch, by the caller's names."""
        if len(self._observation) == 1:
            return dict.fromkeys(self._observation, batch[field])
        return {name: batch[f"{field}.{column}"] for name, column in self._observation.items()}

    def actions(self, batch: Batch) -> Columns:
        """The actions of a batch, by the caller's names."""
        if len(self._action) == 1:
            return dict.fromkeys(self._action, batch["action"])
        return {name: batch[f"action.{column}"] for name, column in self._action.items()}

    def update_priorities(self, keys: Any, priorities: Any) -> UpdateResult:
        """Of any batch of this table."""
        self._check_open()
        if not self._learners:
            self._learners[1] = self.replay.learner(self.table, batch_size=1, timeout=self._timeout)
        return next(iter(self._learners.values())).update_priorities(keys, priorities)

    def info(self) -> TableInfo:
        """The table's numbers now."""
        self._check_open()
        return self.replay.table(self.table).info()

    def reset(self) -> None:
        """Empties the table, of other actors' items too."""
        self.cut()
        self.replay.table(self.table).reset()

    def close(self) -> None:
        """Cuts, waits for acknowledgements, and closes what this opened; more than once."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._actor is not None and self._writer is not None:
                try:
                    self._writer.cut()
                finally:
                    self._actor.close()
        finally:
            for learner in self._learners.values():
                learner.close()
            if self._owned is not None:
                self._owned.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the buffer of table {self.table!r} is closed")
