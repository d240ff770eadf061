"""Where the bytes of steps and of sampled rows lie.

A **step** is its observation columns, its action columns, then reward, terminated, truncated; each aligned to its
item size, the whole rounded up to 8. An observation-only step has the first `observation_bytes` of it.

A **row** is what one sampled item shows::

    0   key          uint64
    8   probability  float64
    16  version uint64, reward float32, discount float32, length int32, 4 bytes of padding: the item's own 24 bytes
    40  the action columns of the anchor step
    ..  for each observation column its F frames

F is stack + n while n < stack: the frames overlap, obs is the first `stack` and next_obs the last `stack`. Otherwise
F is 2 x stack. Rows are a multiple of 8 bytes (16 where a column is complex128), so that torch can share them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from netreplay.dtypes import ColumnType
from netreplay.errors import SpecError
from netreplay.spec import ColumnSpec, StoreSpec, TableSpec

ROW_HEAD = 16  # NR_ROW_HEAD
MAX_GATHERS = 1024  # NR_MAX_GATHERS
MAX_STEP_BYTES = 2**26
ITEM_BYTES = 24
VERSION_OFFSET = 0  # of the item's columns
# Item columns: name, dtype, offset within the item's own bytes.
ITEM_COLUMNS = (
    ("version", "uint64", 0),
    ("reward", "float32", 8),
    ("discount", "float32", 12),
    ("length", "int32", 16),
)


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


class Gather(NamedTuple):
    """One piece of a row, as struct nr_gather."""

    delta: int
    from_end: int
    source: int
    length: int
    target: int


@dataclass(frozen=True)
class RowLayout:
    """A row's fields and the pieces it is gathered from."""

    fields: tuple[Field, ...]
    gathers: tuple[Gather, ...]
    row_bytes: int

    @cached_property
    def types(self) -> dict[str, ColumnType]:
        return {f.name: ColumnType(f.dtype) for f in self.fields}

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """A numpy record over one row; fields may overlap (obs and next_obs share frames)."""
        return np.dtype(
            {
                "names": [f.name for f in self.fields],
                "formats": [(self.types[f.name].numpy, f.shape) for f in self.fields],
                "offsets": [f.offset for f in self.fields],
                "itemsize": self.row_bytes,
            }
        )


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
            and (last.delta, last.from_end) == (piece.delta, piece.from_end)
            and last.source + last.length == piece.source
            and last.target + last.length == piece.target
        ):
            merged[-1] = last._replace(length=last.length + piece.length)
        else:
            merged.append(piece)
    return tuple(merged)


def row_layout(table: TableSpec, step: StepLayout, name: str = "") -> RowLayout:
    """The layout of a table's rows."""
    fields = [Field("key", "int64", (), 0), Field("probability", "float64", (), 8)]
    fields += [Field(column, dtype, (), ROW_HEAD + offset) for column, dtype, offset in ITEM_COLUMNS]
    gathers: list[Gather] = []
    offset = ROW_HEAD + ITEM_BYTES
    largest = 8
    for column in step.action:
        size = ColumnType(column.dtype).size
        largest = max(largest, size)
        offset = align(offset, size)
        field = "action" if len(step.action) == 1 else f"action.{column.name}"
        fields.append(Field(field, column.dtype, column.shape, offset))
        gathers.append(Gather(0, 0, column.offset, column.bytes, offset))
        offset += column.bytes
    stack = table.window.stack
    frames, next_at = frames_of(table.window.n, stack)
    for column in step.observation:
        size = ColumnType(column.dtype).size
        largest = max(largest, size)
        offset = align(offset, size)
        suffix = "" if len(step.observation) == 1 else f".{column.name}"
        shape = (stack, *column.shape) if stack > 1 else column.shape
        fields.append(Field(f"obs{suffix}", column.dtype, shape, offset))
        fields.append(Field(f"next_obs{suffix}", column.dtype, shape, offset + next_at * column.bytes))
        for delta, from_end in frames:
            gathers.append(Gather(delta, from_end, column.offset, column.bytes, offset))
            offset += column.bytes
    merged = _merge(gathers)
    if len(merged) > MAX_GATHERS:
        path = f"table.{name}.window.stack"
        raise SpecError(
            f"{path}: {stack} makes rows of {len(merged)} pieces, above {MAX_GATHERS}", path=path, value=stack
        )
    return RowLayout(tuple(fields), merged, align(offset, largest))
