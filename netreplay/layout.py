"""Where the bytes of steps and of sampled rows lie.

A **step** is its observation columns, its action columns, then reward, terminated, truncated; each aligned to its
item size, the whole rounded up to 8. An observation-only step has the first `observation_bytes` of it.

A **row** is what one sampled item shows, n-step or sequence::

    0   key          uint64                         0   key          uint64
    8   probability  float64                        8   probability  float64
    16  version uint64, reward float32,             16  version uint64, length int32, timestep int32:
        discount float32, length int32, 4 bytes         the item's own 16 bytes
        of padding: the item's own 24 bytes         32  the action columns, reward, terminated, truncated,
    40  the action columns of the anchor step           each of T steps, one step behind the other
    ..  for each observation column its F frames    ..  for each observation column its F frames

n-step: F is stack + n while n < stack: the frames overlap, obs is the first `stack` and next_obs the last `stack`.
Otherwise F is 2 x stack. Sequence: F is T + stack, and obs of step t is the `stack` frames from the t-th on, next_obs
those from the one after. Rows are a multiple of 8 bytes (16 where a column is complex128), so that torch can share
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from netreplay.dtypes import ColumnType
from netreplay.errors import SpecError
from netreplay.spec import MAX_U32, RESULTS, ColumnSpec, StoreSpec, TableSpec, Window

ROW_HEAD = 16  # NR_ROW_HEAD
MAX_GATHERS = 1024  # NR_MAX_GATHERS
MAX_STEP_BYTES = 2**26
VERSION_OFFSET = 0  # of the item's columns


class ItemColumns(NamedTuple):
    """An item's own columns, which the actor's client reckons and the engine keeps as bytes."""

    bytes: int
    columns: tuple[tuple[str, str, int], ...]
    """name, dtype, offset within the item's own bytes"""


_NSTEP_COLUMNS = ItemColumns(
    24, (("version", "uint64", 0), ("reward", "float32", 8), ("discount", "float32", 12), ("length", "int32", 16))
)
_SEQUENCE_COLUMNS = ItemColumns(16, (("version", "uint64", 0), ("length", "int32", 8), ("timestep", "int32", 12)))


def item_columns(window: Window) -> ItemColumns:
    """Those of the items of such a window."""
    return _SEQUENCE_COLUMNS if window.sequential else _NSTEP_COLUMNS


def align(offset: int, size: int) -> int:
    """offset, rounded up to a multiple of size"""
    return -(-offset // size) * size if size > 1 else offset


class StepColumn(NamedTuple):
    """A column within a step."""

    name: str
    kind: str
    """observation, action or result"""
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int


@dataclass(frozen=True)
class StepLayout:
    """A step's columns, observation first."""

    columns: tuple[StepColumn, ...]
    observation_bytes: int
    step_bytes: int

    @cached_property
    def observation(self) -> tuple[StepColumn, ...]:
        return tuple(c for c in self.columns if c.kind == "observation")

    @cached_property
    def action(self) -> tuple[StepColumn, ...]:
        return tuple(c for c in self.columns if c.kind == "action")

    def column(self, name: str) -> StepColumn:
        return next(c for c in self.columns if c.name == name)


def step_layout(store: StoreSpec, name: str = "") -> StepLayout:
    """The layout of a store's steps."""
    columns: list[StepColumn] = []
    offset = 0
    observation_bytes = 0
    results = {"reward": ColumnSpec("float32"), "terminated": ColumnSpec("bool"), "truncated": ColumnSpec("bool")}
    for kind, specs in (("observation", store.observation), ("action", store.action), ("result", results)):
        for column_name, spec in specs.items():
            offset = align(offset, spec.type.size)
            columns.append(StepColumn(column_name, kind, spec.dtype, spec.shape, offset, spec.bytes))
            offset += spec.bytes
        if kind == "observation":
            observation_bytes = offset
    if offset > MAX_STEP_BYTES:
        path = f"store.{name}"
        raise SpecError(f"{path}: a step of {offset} bytes is above {MAX_STEP_BYTES}", path=path, value=offset)
    return StepLayout(tuple(columns), observation_bytes, align(offset, 8))


class Field(NamedTuple):
    """A field of a row, as a batch shows it: shape is that of one item."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]
    """bytes along each axis; stacks of a sequence overlap"""


class Gather(NamedTuple):
    """Pieces of a row, as struct nr_gather."""

    delta: int
    from_end: int
    source: int
    length: int
    target: int
    more: int = 0
    inside: int = 0


def packed(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """strides of an array without gaps"""
    strides: list[int] = []
    for extent in reversed(shape):
        strides.insert(0, size)
        size *= extent
    return tuple(strides)


@dataclass(frozen=True)
class RowLayout:
    """A row's fields and the pieces it is gathered from."""

    fields: tuple[Field, ...]
    gathers: tuple[Gather, ...]
    row_bytes: int
    item_bytes: int
    window: Window

    @cached_property
    def types(self) -> dict[str, ColumnType]:
        return {f.name: ColumnType(f.dtype) for f in self.fields}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """what a batch shows: the fields but key and probability, and `mask` of sequences"""
        names = tuple(f.name for f in self.fields[2:])
        return (*names, "mask") if self.window.sequential else names

    @cached_property
    def plain(self) -> frozenset[str]:
        """those of `names` that are fields of `dtype`"""
        return frozenset(self.names).intersection(self.dtype.names or ())

    @cached_property
    def _strided(self) -> dict[str, Field]:
        return {f.name: f for f in self.fields if f.strides != packed(f.shape, self.types[f.name].size)}

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """A numpy record over one row; fields may overlap (obs and next_obs share frames). Without the stacks of
        sequences, which no record can hold: see `view`."""
        fields = [f for f in self.fields if f.name not in self._strided]
        return np.dtype(
            {
                "names": [f.name for f in fields],
                "formats": [(self.types[f.name].numpy, f.shape) for f in fields],
                "offsets": [f.offset for f in fields],
                "itemsize": self.row_bytes,
            }
        )

    def view(self, rows: NDArray[Any], name: str) -> NDArray[Any]:
        """A field of rows, which are contiguous records of `dtype` [B]: it shares their memory; `mask` is made."""
        field = self._strided.get(name)
        if field is not None:
            return np.ndarray(
                (len(rows), *field.shape),
                self.types[name].numpy,
                rows.view(np.uint8),
                field.offset,
                (self.row_bytes, *field.strides),
            )
        if name == "mask" and self.window.sequential:
            return self.mask(rows["length"])
        array: NDArray[Any] = rows[name]
        return array

    def mask(self, length: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which of the T steps of sequences are real, bool [B, T]."""
        steps = np.arange(self.window.reach, dtype=np.int32)
        real: NDArray[np.bool_]
        if self.window.pad == "tail":
            real = steps < length[:, None]
        else:
            real = steps >= self.window.reach - length[:, None]
        return real


def frames_of(n: int, stack: int) -> tuple[list[tuple[int, int]], int]:
    """The frames of an observation column in a row as (delta, from_end), and where next_obs begins among them."""
    before = [(delta, 0) for delta in range(1 - stack, 1)]
    if n < stack:
        return before + [(delta, 0) for delta in range(1, n + 1)], n
    return before + [(delta, 1) for delta in range(1 - stack, 1)], stack


def _merge(gathers: Iterable[Gather]) -> tuple[Gather, ...]:
    """Joins pieces that follow one another in both the step and the row."""
    merged: list[Gather] = []
    for piece in gathers:
        if piece.length == 0:
            continue
        last = merged[-1] if merged else None
        if (
            last is not None
            and last[5:] == piece[5:] == (0, 0)
            and (last.delta, last.from_end) == (piece.delta, piece.from_end)
            and last.source + last.length == piece.source
            and last.target + last.length == piece.target
        ):
            merged[-1] = last._replace(length=last.length + piece.length)
        else:
            merged.append(piece)
    return tuple(merged)


class _Rows:
    """Fields and gathers of a row as they are laid out, one behind the other."""

    def __init__(self, window: Window) -> None:
        own = item_columns(window)
        self.window = window
        self.item_bytes = own.bytes
        self.offset = ROW_HEAD + own.bytes
        self.largest = 8
        self.fields: list[Field] = []
        self.gathers: list[Gather] = []
        self._field("key", "int64", (), 0)
        self._field("probability", "float64", (), 8)
        for column, dtype, offset in own.columns:
            self._field(column, dtype, (), ROW_HEAD + offset)

    def _field(self, name: str, dtype: str, shape: tuple[int, ...], offset: int) -> None:
        self.fields.append(Field(name, dtype, shape, offset, packed(shape, ColumnType(dtype).size)))

    def _align(self, column: StepColumn) -> None:
        size = ColumnType(column.dtype).size
        self.largest = max(self.largest, size)
        self.offset = align(self.offset, size)

    def results(self, column: StepColumn, name: str) -> None:
        """An action column, or another that a step has and an observation has not."""
        self._align(column)
        if self.window.sequential:
            steps = self.window.reach
            delta, from_end = (0, 0) if self.window.pad == "tail" else (-steps, 1)
            shape = (steps, *column.shape)
            self.gathers.append(Gather(delta, from_end, column.offset, column.bytes, self.offset, steps - 1, 1))
        else:
            steps, shape = 1, column.shape
            self.gathers.append(Gather(0, 0, column.offset, column.bytes, self.offset))
        self._field(name, column.dtype, shape, self.offset)
        self.offset += steps * column.bytes

    def observation(self, column: StepColumn, suffix: str) -> None:
        """obs and next_obs of a column, over the frames they share."""
        self._align(column)
        stack = self.window.stack
        shape = (stack, *column.shape) if stack > 1 else column.shape
        if self.window.sequential:
            steps = self.window.reach
            delta, from_end = (1 - stack, 0) if self.window.pad == "tail" else (1 - stack - steps, 1)
            self.gathers.append(Gather(delta, from_end, column.offset, column.bytes, self.offset, steps + stack - 1))
            strides = (column.bytes, *packed(shape, ColumnType(column.dtype).size))
            for name, first in (("obs", 0), ("next_obs", 1)):
                at = self.offset + first * column.bytes
                self.fields.append(Field(name + suffix, column.dtype, (steps, *shape), at, strides))
            self.offset += (steps + stack) * column.bytes
            return
        frames, next_at = frames_of(self.window.n, stack)
        self._field(f"obs{suffix}", column.dtype, shape, self.offset)
        self._field(f"next_obs{suffix}", column.dtype, shape, self.offset + next_at * column.bytes)
        for delta, from_end in frames:
            self.gathers.append(Gather(delta, from_end, column.offset, column.bytes, self.offset))
            self.offset += column.bytes


def row_layout(table: TableSpec, step: StepLayout, name: str = "") -> RowLayout:
    """The layout of a table's rows."""
    window = table.window
    rows = _Rows(window)
    for column in step.action:
        if window.shows(column.name):
            rows.results(column, "action" if len(step.action) == 1 else f"action.{column.name}")
    if window.sequential:
        for result in RESULTS:
            if window.shows(result):
                rows.results(step.column(result), result)
    for column in step.observation:
        if window.shows(column.name):
            rows.observation(column, "" if len(step.observation) == 1 else f".{column.name}")
    merged = _merge(rows.gathers)
    if len(merged) > MAX_GATHERS:
        path = f"table.{name}.window.stack"
        raise SpecError(
            f"{path}: {window.stack} makes rows of {len(merged)} pieces, above {MAX_GATHERS}",
            path=path,
            value=window.stack,
        )
    row_bytes = align(rows.offset, rows.largest)
    if row_bytes > MAX_U32:
        path = f"table.{name}.window"
        raise SpecError(f"{path}: rows of {row_bytes} bytes are above {MAX_U32}", path=path, value=row_bytes)
    return RowLayout(tuple(rows.fields), merged, row_bytes, rows.item_bytes, window)
