"""Specs: what a server holds. Immutable; every default and every refusal is decided here, before anything is allocated.

Source: docs/semantics.md 1 (specs), 5 (space). A spec comes from TOML (`Spec.from_toml`), from Python, or from a server
(`netreplay.spec_json`); `netreplay.layout` reckons where its bytes lie.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netreplay.dtypes import ColumnType, canonical_name
from netreplay.errors import SpecError

SAMPLERS = (
    "prioritized",
    "uniform",
    "fifo",
    "lifo",
    "stratified",
    "max_heap",
    "min_heap",
    "top_k",
    "without_replacement",
)
DISTINCT_SAMPLERS = ("fifo", "lifo", "max_heap", "min_heap")
"""the draws of one batch are different items, the same at every call; so a batch must be one draw of the table"""
WEIGHTED_SAMPLERS = ("prioritized", "stratified")
"""items are drawn as often as their priority says, so a batch has weights"""
REMOVERS = ("fifo", "uniform", "lowest_priority", "oldest")
LIMITERS = ("min_size", "ratio", "queue", "stack")
RESULTS = ("reward", "terminated", "truncated")
MAX_U32 = 2**32 - 2
MAX_SAMPLES = 2.0**32  # of one insert, and by which a ratio may be off
MAX_WINDOW = 4096  # NR_MAX_WINDOW
MAX_SAMPLED = 2**31 - 1  # one bit of the count means something else
DEFAULT_IN_FLIGHT = 64
MAX_STREAMS = 16_384
MIN_STREAMS = 64
LEAST_IN_FLIGHT = 4  # steps: one call of an actor must fit
DEFAULT_LEASES = 8_192
DEFAULT_SET_BYTES = 64 * 2**20
MAX_AGE = 1e9  # seconds
MAX_LAG = 16_383  # publications: NR_MAX_VERSIONS - 1
MAX_SET_BYTES = 2**32 - 1 - 48  # offsets on the wire have 32 bits, and a message begins with its head

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}\Z")
# What `append` and a batch call something else.
_RESERVED = {"reward", "terminated", "truncated", "priority", "final", "final_mask", "self"}


def _refuse(path: str, value: Any, complaint: str) -> SpecError:
    return SpecError(f"{path}: {value!r} {complaint}", path=path, value=value)


def _whole(path: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refuse(path, value, "is not a whole number")
    if not low <= value <= high:
        raise _refuse(path, value, f"is not between {low} and {high}")
    return value


def _number(path: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refuse(path, value, "is not a number")
    if not low <= value <= high:
        raise _refuse(path, value, f"is not between {low:g} and {high:g}")
    return float(value)


def _choice(path: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise _refuse(path, value, f"is not one of {', '.join(choices)}")
    return str(value)


@dataclass(frozen=True)
class ColumnSpec:
    """One column of a step: dtype (a numpy name, or "bfloat16") and the shape of one value."""

    dtype: str
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "dtype", canonical_name(self.dtype))
        except ValueError as complaint:
            raise _refuse("dtype", self.dtype, str(complaint)) from None
        if not isinstance(self.shape, list | tuple):
            raise _refuse("shape", self.shape, "is not a list of whole numbers")
        shape = tuple(_whole("shape", extent, 0, MAX_U32) for extent in self.shape)
        if len(shape) > 16:
            raise _refuse("shape", list(shape), "has more than 16 axes")
        object.__setattr__(self, "shape", shape)
        if self.bytes > MAX_U32:
            raise _refuse("shape", list(shape), f"takes {self.bytes} bytes a step, above {MAX_U32}")

    @property
    def type(self) -> ColumnType:
        return ColumnType(self.dtype)

    @property
    def bytes(self) -> int:
        """of one value"""
        return math.prod(self.shape) * self.type.size


@dataclass(frozen=True)
class Window:
    """Which steps an item is made of, over stacks of observations.

    "nstep" is one transition per step; "sequence" is `length` steps in a row every `stride` steps; "episode" is whole
    episodes, those of more than `length` steps in consecutive pieces. No window crosses an episode.
    """

    n: int = 1
    """nstep: steps from the anchor to the next observation, >= 1; else the default of `nstep_returns`"""
    gamma: float = 0.99
    """discount per step, 0 to 1; of sequences the default of `nstep_returns`"""
    stack: int = 1
    """observations that stand one on the other in `obs`, >= 1; 1 means no stack axis"""
    kind: str = "nstep"
    length: int | None = None
    """sequence, episode: steps of an item, >= 1"""
    stride: int | None = None
    """sequence: steps from the first of one item to the first of the next; None: `length`, no overlap"""
    burn_in: int = 0
    """sequence: first steps that only warm a recurrent state up; told to the learner, changes no item"""
    start: int = 0
    """sequence: position of the first item's first step in its episode"""
    pad: str = "tail"
    """sequence, episode: where an item of fewer than `length` steps is filled up: its "tail" or its "head\""""
    end: str = "pad"
    """sequence: what becomes of steps at an episode's end that no full item holds: "pad" makes a shorter item, "drop"
    none, "shift" a full one that reaches back further (a shorter one where the episode has no `length` steps)"""
    columns: tuple[str, ...] | None = None
    """of the store, those that rows show; sequences also know reward, terminated and truncated. None: all"""

    def __post_init__(self) -> None:
        _choice("kind", self.kind, ("nstep", "sequence", "episode"))
        object.__setattr__(self, "gamma", _number("gamma", self.gamma, 0.0, 1.0))
        _whole("stack", self.stack, 1, MAX_WINDOW)
        _choice("pad", self.pad, ("tail", "head"))
        _choice("end", self.end, ("pad", "drop", "shift"))
        _whole("start", self.start, 0, 2**31 - 1)
        _whole("burn_in", self.burn_in, 0, MAX_WINDOW)
        self._check_kind()
        if self.kind == "nstep":
            _whole("n", self.n, 1, MAX_WINDOW)
            if self.steps > MAX_WINDOW:
                raise _refuse("stack", self.stack, f"and n = {self.n} make a window above {MAX_WINDOW} steps")
        else:
            self._check_sequence()
        if self.columns is not None:
            self._check_columns()

    def _check_kind(self) -> None:
        """Refuses what the kind has no use for."""
        unset = {"length": None, "stride": None, "burn_in": 0, "start": 0, "pad": "tail", "end": "pad"}
        uses = {"nstep": (), "episode": ("length", "pad"), "sequence": tuple(unset)}[self.kind]
        for key, default in unset.items():
            value = getattr(self, key)
            if key not in uses and value != default:
                kinds = '"sequence" or "episode"' if key in ("length", "pad") else '"sequence"'
                raise _refuse(key, value, f'is for kind = {kinds}, and this window is "{self.kind}"')

    def _check_sequence(self) -> None:
        if self.length is None:
            raise SpecError(f'length: is missing; kind = "{self.kind}" needs it', path="length", value=None)
        length = _whole("length", self.length, 1, MAX_WINDOW - 1)
        if self.steps > MAX_WINDOW:
            raise _refuse("stack", self.stack, f"and length = {length} make a window above {MAX_WINDOW} steps")
        if self.kind == "sequence":
            object.__setattr__(
                self, "stride", _whole("stride", length if self.stride is None else self.stride, 1, MAX_U32)
            )
        if self.burn_in >= length:
            raise _refuse("burn_in", self.burn_in, f"leaves none of the {length} steps to learn from")
        if _whole("n", self.n, 1, MAX_WINDOW) > length:
            raise _refuse("n", self.n, f"is above the length of {length} steps")

    def _check_columns(self) -> None:
        columns = self.columns
        if not isinstance(columns, list | tuple) or not all(isinstance(name, str) for name in columns):
            raise _refuse("columns", columns, "is not a list of column names")
        if not columns:
            raise _refuse("columns", [], "names no column; without the key rows show all")
        if len(set(columns)) < len(columns):
            raise _refuse("columns", list(columns), "names a column twice")
        object.__setattr__(self, "columns", tuple(columns))

    @property
    def steps(self) -> int:
        """steps of the longest item, its last observation's included"""
        return self.stack + self.reach

    @property
    def reach(self) -> int:
        """steps from the anchor to the last observation of a full item"""
        return self.n if self.kind == "nstep" or self.length is None else self.length

    @property
    def advance(self) -> int:
        """steps from one item to the next"""
        if self.kind == "nstep":
            return 1
        return self.reach if self.stride is None else self.stride

    @property
    def sequential(self) -> bool:
        """rows hold an axis of steps"""
        return self.kind != "nstep"

    def shows(self, column: str) -> bool:
        """whether rows hold the column"""
        return self.columns is None or column in self.columns


@dataclass(frozen=True)
class StoreSpec:
    """The columns of a stream's steps; reward (float32), terminated and truncated (bool) are always there.

    `steps`, `streams` and `in_flight` are sizes; None takes the default that `netreplay.memory` reckons from the
    tables.
    """

    observation: Mapping[str, ColumnSpec]
    action: Mapping[str, ColumnSpec] = field(default_factory=dict)
    steps: int | None = None
    streams: int | None = None
    """streams (environments) that may exist at once"""
    in_flight: int | None = None
    """steps that a stream may have sent beyond what is stored"""
    bytes: int | None = None
    """of its steps, instead of `steps`: items leave when they are full, however long those are"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "observation", dict(self.observation))
        object.__setattr__(self, "action", dict(self.action))
        if not self.observation:
            raise _refuse("observation", {}, "names no column; at least one is wanted")
        for kind, columns in (("observation", self.observation), ("action", self.action)):
            for name, column in columns.items():
                if not isinstance(name, str) or not name.isidentifier() or name in _RESERVED:
                    raise _refuse(kind, name, "cannot name a column: append() takes it as a keyword")
                if not isinstance(column, ColumnSpec):
                    raise _refuse(f"{kind}.{name}", column, "is not a ColumnSpec")
        for name in self.action:
            if name in self.observation:
                raise _refuse(f"action.{name}", name, "is an observation column too; names must differ")
        for size, least in (("steps", 1), ("streams", 1), ("in_flight", LEAST_IN_FLIGHT)):
            if getattr(self, size) is not None:
                _whole(size, getattr(self, size), least, MAX_U32)
        if self.bytes is not None:
            _whole("bytes", self.bytes, 1, 2**63 - 1)
            if self.steps is not None:
                raise _refuse(
                    "bytes", self.bytes, f"and steps = {self.steps} both say how much there is: leave one out"
                )


@dataclass(frozen=True)
class Limiter:
    """When a table lets inserts and draws through, besides `min_size`.

    "ratio" keeps inserts x samples_per_insert - samples within error_buffer of min_size x samples_per_insert; "queue"
    and "stack" hold at most `size` items, each drawn once (with the sampler "fifo" or "lifo").
    """

    kind: str = "min_size"
    samples_per_insert: float | None = None
    """samples taken for each item inserted, > 0"""
    error_buffer: float | None = None
    """samples by which the ratio may be off, >= max(1, samples_per_insert)"""
    size: int | None = None
    """items of a queue or stack"""

    def __post_init__(self) -> None:
        _choice("kind", self.kind, LIMITERS)
        own = {"ratio": ("samples_per_insert", "error_buffer"), "queue": ("size",), "stack": ("size",)}
        wanted = own.get(self.kind, ())
        for name in ("samples_per_insert", "error_buffer", "size"):
            value = getattr(self, name)
            if name in wanted and value is None:
                raise _refuse(name, None, f"is missing: a limiter of kind {self.kind!r} wants {' and '.join(wanted)}")
            if name not in wanted and value is not None:
                raise _refuse(name, value, f"has no meaning for a limiter of kind {self.kind!r}")
        if self.kind in ("queue", "stack"):
            _whole("size", self.size, 1, MAX_U32)
        if self.kind != "ratio":
            return
        ratio = _number("samples_per_insert", self.samples_per_insert, 0.0, MAX_SAMPLES)
        if ratio == 0:
            raise _refuse("samples_per_insert", self.samples_per_insert, "is not above 0")
        buffer = _number("error_buffer", self.error_buffer, 0.0, MAX_SAMPLES)
        if buffer < max(1.0, ratio):
            least = f"{max(1.0, ratio):g}, the larger of 1 and samples_per_insert"
            raise _refuse("error_buffer", self.error_buffer, f"is below {least}: inserts and draws could both wait")
        object.__setattr__(self, "samples_per_insert", ratio)
        object.__setattr__(self, "error_buffer", buffer)


@dataclass(frozen=True)
class TableSpec:
    """Items over a store's steps, how they are drawn and how they leave."""

    store: str
    capacity: int
    """items"""
    sampler: str = "prioritized"
    remover: str = "fifo"
    exponent: float = 0.6
    """of the priority, >= 0; 0 draws uniformly among items of positive priority"""
    min_size: int = 1
    """items before anything is drawn"""
    leases: int = DEFAULT_LEASES
    """drawn items that learners may hold at once"""
    window: Window = field(default_factory=Window)
    limiter: Limiter = field(default_factory=Limiter)
    max_sampled: int | None = None
    """draws of one item after which it leaves"""
    max_age: float | None = None
    """seconds after its insertion at which an item leaves"""
    max_lag: int | None = None
    """publications of the parameter set `parameters` by which an item may be behind; then it leaves"""
    parameters: str = "default"
    """the set that max_lag is counted by"""
    top: int | None = None
    """sampler "top_k": items of the largest priorities that are drawn from"""
    passes: int = 0
    """sampler "without_replacement": passes over the table, after which draws wait; 0: endless"""

    def __post_init__(self) -> None:
        if not isinstance(self.store, str):
            raise _refuse("store", self.store, "is not the name of a store")
        _whole("capacity", self.capacity, 1, MAX_U32)
        _choice("sampler", self.sampler, SAMPLERS)
        _choice("remover", self.remover, REMOVERS)
        object.__setattr__(self, "exponent", _number("exponent", self.exponent, 0.0, 16.0))
        _whole("min_size", self.min_size, 0, MAX_U32)
        if self.min_size > self.capacity:
            raise _refuse(
                "min_size", self.min_size, f"is above the capacity of {self.capacity}: nothing would ever be drawn"
            )
        _whole("leases", self.leases, 1, 2**24)
        if not isinstance(self.window, Window):
            raise _refuse("window", self.window, "is not a Window")
        if not isinstance(self.limiter, Limiter):
            raise _refuse("limiter", self.limiter, "is not a Limiter")
        self._check_sampling()
        if self.limiter.kind in ("queue", "stack"):
            self._check_queue(self.limiter)
        if self.max_age is not None:
            object.__setattr__(self, "max_age", _number("max_age", self.max_age, 1e-3, MAX_AGE))
        if self.max_lag is not None:
            _whole("max_lag", self.max_lag, 0, MAX_LAG)
        if not isinstance(self.parameters, str):
            raise _refuse("parameters", self.parameters, "is not the name of a parameter set")

    def _check_queue(self, limiter: Limiter) -> None:
        kind, order = limiter.kind, {"queue": "fifo", "stack": "lifo"}[limiter.kind]
        if self.sampler != order:
            raise _refuse("sampler", self.sampler, f"is not {order!r}, which a limiter of kind {kind!r} wants")
        if limiter.size is not None and limiter.size > self.capacity:
            raise _refuse(
                "limiter.size", limiter.size, f"is above the capacity of {self.capacity}: items would be lost"
            )
        if self.min_size > 1:
            raise _refuse("min_size", self.min_size, f"is above 1: what a {kind} holds can be drawn at once")
        if self.max_sampled not in (None, 1) or isinstance(self.max_sampled, bool):
            raise _refuse("max_sampled", self.max_sampled, f"is not 1: an item of a {kind} is drawn once")

    def _check_sampling(self) -> None:
        """`top`, `passes` and `max_sampled`: each where it means something."""
        if self.sampler == "top_k":
            if self.top is None:
                raise _refuse(
                    "top", None, "is missing: how many of the largest priorities the sampler top_k draws from"
                )
            _whole("top", self.top, 1, MAX_U32)
        elif self.top is not None:
            raise _refuse("top", self.top, f"goes with the sampler top_k, not with {self.sampler}")
        _whole("passes", self.passes, 0, MAX_U32)
        if self.passes and self.sampler != "without_replacement":
            raise _refuse("passes", self.passes, f"goes with the sampler without_replacement, not with {self.sampler}")
        if self.max_sampled is not None:
            _whole("max_sampled", self.max_sampled, 1, MAX_SAMPLED)


@dataclass(frozen=True)
class ParameterSpec:
    """A named parameter set; two buffers of `max_bytes` are kept."""

    max_bytes: int = DEFAULT_SET_BYTES

    def __post_init__(self) -> None:
        _whole("max_bytes", self.max_bytes, 1, MAX_SET_BYTES)


def _default_parameters() -> dict[str, ParameterSpec]:
    return {"default": ParameterSpec()}


@dataclass(frozen=True)
class Spec:
    """Everything a server holds. The set "default" is always there."""

    stores: Mapping[str, StoreSpec]
    tables: Mapping[str, TableSpec]
    parameters: Mapping[str, ParameterSpec] = field(default_factory=_default_parameters)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stores", dict(self.stores))
        object.__setattr__(self, "tables", dict(self.tables))
        object.__setattr__(self, "parameters", {**_default_parameters(), **self.parameters})
        limits = (("store", self.stores, 64), ("table", self.tables, 256), ("parameters", self.parameters, 64))
        for kind, named, limit in limits:
            if not named:
                raise _refuse(kind, {}, f"names no {kind}; at least one is wanted")
            if len(named) > limit:
                raise _refuse(kind, len(named), f"are more than {limit}")
            for name in named:
                if not isinstance(name, str) or not _NAME.match(name):
                    raise _refuse(kind, name, "is not a name: letters, digits, _ and -, beginning with a letter")
        for name, table in self.tables.items():
            if table.store not in self.stores:
                known = ", ".join(self.stores)
                raise _refuse(f"table.{name}.store", table.store, f"is no store; there are: {known}")
            store = self.stores[table.store]
            columns = [*store.observation, *store.action]
            if table.window.sequential:
                columns += RESULTS
            for column in table.window.columns or ():
                if column not in columns:
                    known = ", ".join(columns)
                    raise _refuse(
                        f"table.{name}.window.columns", column, f"is none that rows can show; those are: {known}"
                    )
            if table.parameters not in self.parameters:
                known = ", ".join(self.parameters)
                path = f"table.{name}.parameters"
                raise _refuse(path, table.parameters, f"is no parameter set; there are: {known}")

    @classmethod
    def from_toml(cls, source: str | Path) -> Spec:
        """From a TOML file (a path), or from TOML text (a str with a line break or "=" in it)."""
        from netreplay.spec_toml import parse_spec, read

        return parse_spec(read(source))

    def to_json(self) -> str:
        """The canonical text that a server tells its clients, layouts included."""
        from netreplay.spec_json import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """Reads `to_json`'s text; MalformedError or BadVersionError when it is not that."""
        from netreplay.spec_json import from_json

        return from_json(text)

    def tables_of(self, store: str) -> dict[str, TableSpec]:
        """the tables that index a store, in order"""
        return {name: table for name, table in self.tables.items() if table.store == store}
