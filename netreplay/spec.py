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
REMOVERS = ("fifo", "uniform", "lowest_priority", "oldest")
LIMITERS = ("min_size", "ratio", "queue", "stack")
MAX_U32 = 2**32 - 2
MAX_WINDOW = 4096  # NR_MAX_WINDOW
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
    """Which steps an item is made of: an n-step transition over stacks of observations."""

    n: int = 1
    """steps from the anchor to the next observation, >= 1"""
    gamma: float = 0.99
    """discount per step, 0 to 1"""
    stack: int = 1
    """observations that stand one on the other in `obs`, >= 1; 1 means no stack axis"""
    kind: str = "nstep"

    def __post_init__(self) -> None:
        _choice("kind", self.kind, ("nstep",))
        _whole("n", self.n, 1, MAX_WINDOW)
        object.__setattr__(self, "gamma", _number("gamma", self.gamma, 0.0, 1.0))
        _whole("stack", self.stack, 1, MAX_WINDOW)
        if self.steps > MAX_WINDOW:
            raise _refuse("stack", self.stack, f"and n = {self.n} make a window above {MAX_WINDOW} steps")

    @property
    def steps(self) -> int:
        """steps of the longest item"""
        return self.stack + self.n


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
        if self.max_age is not None:
            object.__setattr__(self, "max_age", _number("max_age", self.max_age, 1e-3, MAX_AGE))
        if self.max_lag is not None:
            _whole("max_lag", self.max_lag, 0, MAX_LAG)
        if not isinstance(self.parameters, str):
            raise _refuse("parameters", self.parameters, "is not the name of a parameter set")


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
