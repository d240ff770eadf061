"""A sampled batch: views of one buffer, as numpy arrays or torch tensors over the same memory.

Source: docs/semantics.md 2 (views), 4 (weights).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from netreplay._binding import ffi, lib
from netreplay.clients.arguments import is_number, shown
from netreplay.dtypes import as_tensor
from netreplay.errors import BadConfigError
from netreplay.layout import RowLayout
from netreplay.spec import Window

Normalize = Literal["batch", "table"] | None
_NORMALIZE = {None: lib.NR_NORMALIZE_NONE, "batch": lib.NR_NORMALIZE_BATCH, "table": lib.NR_NORMALIZE_TABLE}
_HEADS, _FLOATS = ffi.typeof("struct nr_draw_head[]"), ffi.typeof("float[]")
_HEAD = np.dtype([(name, "<u8") for name in ("number", "size", "total", "max_leaf", "min_leaf")])


class Draws(NamedTuple):
    """The table at the moment of each draw that the batch is made of; the last draw may be the shorter one."""

    heads: bytes
    """struct nr_draw_head, one after the other"""
    part: int
    """rows of each draw but the last"""
    prioritized: bool
    """whether leaves follow from priorities: the weights of other samplers are all 1"""

    def table(self) -> NDArray[Any]:
        """The heads as records: number, size (items), total, max_leaf, min_leaf (units of 2^-24)."""
        return np.frombuffer(self.heads, _HEAD)


class Batch:
    """`batch["obs"]` and the other `fields`; `keys`, `probabilities`, `weights(beta)`.

    With one observation column the fields are obs and next_obs, else obs.NAME and next_obs.NAME; with one action column
    action, else action.NAME; reward float32, discount float32, length int32, version uint64, each [B]. A stack above
    1 stands first: obs is [B, stack, *shape]. Arrays are strided views that keep the buffer; it is reused when the
    last of them is gone.

    Of a table of sequences the arrays have an axis of T steps after the first: obs and next_obs [B, T, (stack,)
    *shape], action, reward float32, terminated and truncated bool [B, T], all zero (observations: the nearest
    repeated) where `mask` bool [B, T] is False. length int32 [B] is the number of real steps, timestep int32 [B] the
    first one's position in its episode. `burn_in` is the window's.
    """

    __slots__ = ("_as_torch", "_draws", "_layout", "_rows", "_seen")

    def __init__(self, rows: NDArray[Any], layout: RowLayout, draws: Draws, as_torch: bool = False) -> None:
        self._rows, self._layout, self._draws, self._as_torch = rows, layout, draws, as_torch
        self._seen: dict[str, Any] = {}

    @property
    def keys(self) -> Any:
        """int64 [B], for update_priorities; a copy, which does not keep the buffer."""
        return self._copy("key", "copy of key")

    @property
    def probabilities(self) -> Any:
        """float64 [B]: of each draw, that of the integer leaf; a copy, which does not keep the buffer."""
        return self._copy("probability", "copy of probability")

    def _copy(self, field: str, name: str) -> Any:
        value = self._seen.get(name)
        if value is None:
            array = self._rows[field].copy()
            value = self._seen[name] = as_tensor(array, False) if self._as_torch else array
        return value

    def __getitem__(self, field: str) -> Any:
        value = self._seen.get(field)
        if value is None:
            if field in self._layout.plain and not self._as_torch:  # most fields of most batches
                value = self._seen[field] = self._rows[field]
            else:
                value = self._see(field)
        return value

    def _see(self, field: str) -> Any:
        if field not in self._layout.names:
            known = ", ".join(self.fields)
            raise KeyError(f"batch has no field {field!r}; it has: {known}")
        array = self._layout.view(self._rows, field)
        types = self._layout.types
        value = as_tensor(array, field in types and types[field].bits) if self._as_torch else array
        self._seen[field] = value
        return value

    @property
    def fields(self) -> tuple[str, ...]:
        """The names that `batch[name]` takes."""
        return self._layout.names

    @property
    def as_torch(self) -> bool:
        """Whether the fields are tensors."""
        return self._as_torch

    @property
    def window(self) -> Window:
        """What the items are made of."""
        return self._layout.window

    @property
    def burn_in(self) -> int:
        """First steps of each sequence that only warm a recurrent state up."""
        return self._layout.window.burn_in

    def __contains__(self, field: object) -> bool:
        return field in self.fields

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        """B, items."""
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<batch of {len(self)}: {', '.join(self.fields)}>"

    @property
    def draws(self) -> NDArray[Any]:
        """The table at each draw, records of number, size, total, max_leaf, min_leaf."""
        return self._draws.table()

    def torch(self) -> Batch:
        """The same batch with tensors that share its memory."""
        return self if self._as_torch else Batch(self._rows, self._layout, self._draws, True)

    def numpy(self) -> Batch:
        """The same batch with arrays."""
        return Batch(self._rows, self._layout, self._draws, False) if self._as_torch else self

    def weights(self, beta: float, normalize: Normalize = "batch") -> Any:
        """Importance weights ((1/N) / P)^beta, float32 [B]; N is the number of items at the draw.

        "batch" divides by the largest of the batch, "table" by the largest that any item of the table could have,
        None by nothing. beta 0 gives ones. BadConfigError for a beta that is no number between 0 and 16.
        """
        if not isinstance(normalize, str | None) or normalize not in ("batch", "table", None):
            text = f"normalize: {shown(normalize)} is not 'batch', 'table' or None"
            raise BadConfigError(text, field="normalize", value=normalize)
        if not is_number(beta) or not 0.0 <= beta <= 16.0:
            text = f"beta: {shown(beta)} is not a number between 0 and 16"
            raise BadConfigError(text, field="beta", value=beta)
        weights = self._raw_weights(float(beta), normalize)
        return as_tensor(weights, False) if self._as_torch else weights

    def _raw_weights(self, beta: float, normalize: Normalize) -> NDArray[np.float32]:
        count = len(self)
        heads, part, prioritized = self._draws
        if beta == 0.0 or not prioritized or count == 0:
            return np.ones(count, np.float32)
        weights = np.empty(count, np.float32)
        lib.nr_weights(
            ffi.from_buffer(self._rows.base),
            self._layout.row_bytes,
            count,
            ffi.from_buffer(_HEADS, heads),
            part,
            beta,
            _NORMALIZE[normalize],
            ffi.from_buffer(_FLOATS, weights),
        )
        return weights
