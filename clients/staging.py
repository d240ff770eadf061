"""From what users pass to `append` to the pointers that the C reads: checked, converted where that is right, copied
once.

Each column has a writer, made once: an exact match is one assignment into a preallocated buffer (large contiguous
arrays are not even copied); everything else goes the slow way through `netreplay.dtypes.fit`, which converts or
refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netreplay._binding import ffi
from netreplay.clients.arguments import shown
from netreplay.dtypes import ColumnType, Misfit, fit, refuse_masked
from netreplay.errors import ColumnError
from netreplay.layout import StepColumn, StepLayout

Writer = Callable[[Any], None]

DIRECT_BYTES = 8192
"""arrays of at least so many bytes are handed to the C where they lie"""

_INTEGERS = frozenset({int, *(np.dtype(f"{kind}{size}").type for kind in "iu" for size in (1, 2, 4, 8))})
_FLOATS = frozenset({float, int, np.float32, np.float64})
_BOOLS = frozenset({bool, np.bool_})
_FORMATS = {
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
}
_FORMATS |= {"float32": "f", "float64": "d", "bool": "?"}


def misfit_error(store: str, column: str, misfit: Misfit) -> ColumnError:
    """The error of a value that does not fit, with everything it names."""
    at = f"[{', '.join(map(str, misfit.index))}]" if misfit.index else ""
    what = "value" if misfit.value is None else shown(misfit.value)
    return ColumnError(
        f"store {store!r}, column {column!r}{at}: {what} {misfit}",
        store=store,
        column=column,
        index=misfit.index,
        value=misfit.value,
    )


def refuse_columns(store: str, given: dict[str, Any], writers: list[tuple[str, Writer]]) -> None:
    """Raises for the first column that is missing or unknown, if any is."""
    wanted = [name for name, _ in writers]
    known = ", ".join(wanted)
    for name in wanted:
        if name not in given:
            text = f"store {store!r}, column {name!r}: is missing; wanted are: {known}"
            raise ColumnError(text, store=store, column=name)
    for name, value in given.items():
        if name not in wanted:
            text = f"store {store!r}, column {name!r}: is no column here; wanted are: {known}"
            raise ColumnError(text, store=store, column=name, value=value)


class Slot:
    """The memory of one column in one call: `view` for arrays, at pointers[index]."""

    __slots__ = ("index", "name", "own", "pointers", "shape", "store", "type", "view")

    def __init__(self, store: str, column: StepColumn, streams: int, pointers: Any, index: int) -> None:
        self.store, self.name = store, column.name
        self.type = ColumnType(column.dtype)
        self.shape = column.shape if streams == 1 else (streams, *column.shape)
        self.view: NDArray[Any] = np.zeros(self.shape, self.type.numpy)
        raw = self.view.reshape(-1).view(np.uint8)
        self.own = ffi.from_buffer("char[]", raw) if raw.size else ffi.new("char[]", 1)
        self.pointers, self.index = pointers, index
        pointers[index] = self.own

    def slow(self, value: Any) -> None:
        """Converts, or refuses with all the names."""
        try:
            self.view[...] = fit(value, self.type, self.shape)
        except Misfit as misfit:
            raise misfit_error(self.store, self.name, misfit) from None
        self.pointers[self.index] = self.own


def _vector_writer(slot: Slot) -> Writer:
    """For one axis: assigning to a memoryview checks format and length, and copies, faster than numpy does each."""
    view, slow = slot.view, slot.slow
    try:
        cells: Any = view.view(np.uint8).data.cast(memoryview(view).format)  # type: ignore[call-overload, arg-type]
        cells[:] = view
    except (ValueError, TypeError, NotImplementedError):
        return _array_writer(slot)  # a format that memoryviews do not know
    every = slice(None)

    def write(value: Any) -> None:
        if type(value) is np.ndarray:
            try:
                cells[every] = value
            except (ValueError, TypeError, BufferError, NotImplementedError):
                slow(value)
        else:
            slow(value)

    return write


def _array_writer(slot: Slot) -> Writer:
    view, dtype, shape, slow = slot.view, slot.type.numpy, slot.shape, slot.slow
    if slot.type.bits and dtype == np.uint16:
        return slow  # without ml_dtypes nothing tells bfloat16 bits from numbers

    def write(value: Any) -> None:
        if type(value) is np.ndarray and (value.dtype is dtype or value.dtype == dtype) and value.shape == shape:
            view[...] = value
        else:
            slow(value)

    return write


def _direct_writer(slot: Slot) -> Writer:
    view, dtype, shape, slow = slot.view, slot.type.numpy, slot.shape, slot.slow
    pointers, index, own, from_buffer = slot.pointers, slot.index, slot.own, ffi.from_buffer
    if slot.type.bits and dtype == np.uint16:
        return slow

    def write(value: Any) -> None:
        if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape:
            try:
                pointers[index] = from_buffer(value)  # lives as long as the caller's argument: until append returns
            except (BufferError, TypeError, ValueError):
                view[...] = value
                pointers[index] = own
        else:
            slow(value)

    return write


def _narrow_writer(slot: Slot) -> Writer:
    """For rewards: float64 arrays, as Gymnasium gives them, into float32."""
    view, shape, slow = slot.view, slot.shape, slot.slow
    zeros, double = np.zeros(shape, np.float32), np.dtype(np.float64)
    exact = _vector_writer(slot)

    def write(value: Any) -> None:
        if type(value) is np.ndarray and value.dtype is double and value.shape == shape:
            with np.errstate(over="ignore", invalid="ignore"):
                view[...] = value
                finite = zeros.dot(view) == 0.0
            if not finite:  # an infinity or a NaN: was it one before?
                slow(value)
        else:
            exact(value)

    return write


def _scalar_writer(slot: Slot) -> Writer:
    """For one number: an assignment through a memoryview, which checks the range of integers itself."""
    slow, name = slot.slow, slot.type.name
    if name not in _FORMATS:
        return _array_writer(slot)
    cell: Any = slot.view.reshape(1).view(np.uint8).data.cast(_FORMATS[name])  # type: ignore[call-overload]
    kind = slot.type.numpy.kind
    types = {"b": _BOOLS, "f": _FLOATS}.get(kind, _INTEGERS)
    infinity = float("inf")

    def write(value: Any) -> None:
        if type(value) in types:
            try:
                cell[0] = value
            except (ValueError, OverflowError):
                slow(value)
        else:
            slow(value)

    def write_float32(value: Any) -> None:
        if type(value) in types and -3.4e38 < value < 3.4e38:
            cell[0] = value
        else:
            slow(value)

    def write_float64(value: Any) -> None:
        if type(value) in types and -infinity < value < infinity:
            try:
                cell[0] = value
            except OverflowError:
                slow(value)
        else:
            slow(value)

    return {"float32": write_float32, "float64": write_float64}.get(name, write)


def writer_for(slot: Slot) -> Writer:
    """The quickest right way for this column."""
    if slot.shape == ():
        return _scalar_writer(slot)
    if slot.view.nbytes >= DIRECT_BYTES:
        return _direct_writer(slot)
    if slot.view.ndim != 1 or slot.view.size == 0 or slot.type.bits:
        return _array_writer(slot)
    return _narrow_writer(slot) if slot.type.name == "float32" else _vector_writer(slot)


def _results_writer(slots: list[Slot]) -> Callable[[Any, Any, Any], None]:
    """For reward, terminated, truncated together."""
    reward_, terminated_, truncated_ = (writer_for(slot) for slot in slots)

    def write(reward: Any, terminated: Any, truncated: Any) -> None:
        reward_(reward)
        terminated_(terminated)
        truncated_(truncated)

    if slots[0].shape != ():
        return write
    cells = [slot.view.reshape(1).view(np.uint8).data for slot in slots]
    number: Any = cells[0].cast("f")
    first, second = cells[1], cells[2]

    def write_one(reward: Any, terminated: Any, truncated: Any) -> None:
        if type(reward) is float and type(terminated) is bool and type(truncated) is bool and -3.4e38 < reward < 3.4e38:
            number[0] = reward
            first[0] = terminated
            second[0] = truncated
        else:
            write(reward, terminated, truncated)

    return write_one


class Stage:
    """One call's rows: `rows` is what the C reads; `write` puts a value into a column."""

    def __init__(self, store: str, layout: StepLayout, streams: int) -> None:
        self.store, self.layout, self.streams = store, layout, streams
        data = [c for c in layout.columns if c.kind != "result"]
        results = [c for c in layout.columns if c.kind == "result"]
        observation = layout.observation
        self.pointers = ffi.new("void *[]", max(1, len(data)))
        self._result_pointers = ffi.new("void *[]", len(results))
        self._final_pointers = ffi.new("void *[]", len(observation))
        slots = [Slot(store, column, streams, self.pointers, i) for i, column in enumerate(data)]
        self._results = [Slot(store, column, streams, self._result_pointers, i) for i, column in enumerate(results)]
        self._final = [Slot(store, column, streams, self._final_pointers, i) for i, column in enumerate(observation)]
        self.writers = [(slot.name, writer_for(slot)) for slot in slots]
        self.observation_writers = self.writers[: len(observation)]
        self.results = _results_writer(self._results)
        self._strides = ffi.new("uint64_t[]", [c.bytes for c in data] or [0])
        self._final_strides = ffi.new("uint64_t[]", [c.bytes for c in observation])
        self._mask = np.zeros(streams, np.uint8)
        self._mask_pointer = ffi.from_buffer("uint8_t[]", self._mask)
        rows = ffi.new("struct nr_rows *")
        rows.column = ffi.cast("const void **", self.pointers)
        rows.row_stride = self._strides
        rows.reward = ffi.cast("float *", self._result_pointers[0])
        rows.terminated = ffi.cast("uint8_t *", self._result_pointers[1])
        rows.truncated = ffi.cast("uint8_t *", self._result_pointers[2])
        rows.final_stride = self._final_strides
        rows.final_mask = self._mask_pointer
        self.rows = rows

    def clear_results(self) -> None:
        """No reward, not done: for rows that are only an observation."""
        for slot in self._results:
            slot.view[...] = 0

    def clear_final(self) -> None:
        """This call has no final observations."""
        self.rows.final = ffi.NULL

    def write_final(self, final: Any, mask: Any) -> None:
        """Final observations of the rows in mask; without one, of those that are not None, or that are done."""
        for name, value in final.items() if isinstance(final, dict) else [(self._final[0].name, final)]:
            try:
                refuse_masked(value)
            except Misfit as misfit:
                raise misfit_error(self.store, f"final {name}", misfit) from None
        columns = final if isinstance(final, dict) else {self._final[0].name: final}
        names = [slot.name for slot in self._final]
        if (not isinstance(final, dict) and len(names) > 1) or set(columns) != set(names):
            given = sorted(columns) if isinstance(final, dict) else type(final).__name__
            raise ColumnError(
                f"store {self.store!r}, final: a dict of {', '.join(names)} is wanted, not {given}",
                store=self.store,
                column="final",
                value=final,
            )
        chosen = self._rows_of_mask(columns[names[0]], mask)
        for slot in self._final:
            values = columns[slot.name]
            try:
                length = len(values)
            except TypeError:
                length = -1
            if length != self.streams:
                wrong = Misfit(f"has {max(length, 0)} rows, and {self.streams} are wanted")
                raise misfit_error(self.store, f"final {slot.name}", wrong)
            for row in chosen:
                try:
                    slot.view[row] = fit(values[row], slot.type, slot.shape[1:])
                except Misfit as misfit:
                    misfit.index = (int(row), *(misfit.index or ()))
                    raise misfit_error(self.store, f"final {slot.name}", misfit) from None
        self.rows.final = ffi.cast("const void **", self._final_pointers)

    def _rows_of_mask(self, values: Any, mask: Any) -> list[int]:
        if mask is not None:
            try:
                chosen = fit(mask, ColumnType("bool"), (self.streams,))
            except Misfit as misfit:
                raise misfit_error(self.store, "final_mask", misfit) from None
        elif np.dtype(object) == getattr(values, "dtype", None) or isinstance(values, list | tuple):
            chosen = np.asarray([value is not None for value in values], np.bool_)
        else:
            chosen = np.logical_or(self._results[1].view, self._results[2].view)
        if chosen.shape != (self.streams,):
            raise misfit_error(self.store, "final", Misfit(f"has {len(chosen)} rows, and {self.streams} are wanted"))
        self._mask[...] = chosen
        return [int(row) for row in np.flatnonzero(chosen)]
