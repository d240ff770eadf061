"""Column types: their names in a spec, how numpy and torch show them, and which values fit.

A value fits a column when its kind is not higher (bool < integer < float < complex) and it is in range; so 300.7 and
300 do not fit uint8, and 1.0 does not fit int32. Floats are rounded to a narrower float, but a finite one never
becomes infinite. Byte order is converted, never reinterpreted. bfloat16 shows as `ml_dtypes.bfloat16` in numpy where
that package is installed, else as its uint16 bits; as torch.bfloat16 in torch always.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

BFLOAT16 = "bfloat16"
_KINDS = "biufc"  # rising: a value of a later kind never fits an earlier one, but "u" and "i" may swap in range
_RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


def _ml_bfloat16() -> np.dtype[Any] | None:
    try:
        found: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        return None
    return found


class Misfit(ValueError):  # noqa: N818 - a finding, which its caller turns into an error
    """Why a value does not fit: `index` and `value` of the first misfit where there is one."""

    def __init__(self, complaint: str, index: tuple[int, ...] | None = None, value: Any = None) -> None:
        super().__init__(complaint)
        self.index = index
        self.value = value


class ColumnType:
    """The dtype of a column: its name, and the numpy dtype of its bytes."""

    __slots__ = ("bits", "name", "numpy", "size")

    def __init__(self, name: str) -> None:
        self.name = name
        self.bits = name == BFLOAT16
        """True for bfloat16, which numpy alone does not know."""
        self.numpy: np.dtype[Any] = (_ml_bfloat16() or np.dtype(np.uint16)) if self.bits else np.dtype(name)
        """what an array of the column shows"""
        self.size = self.numpy.itemsize

    def __repr__(self) -> str:
        return f"ColumnType({self.name!r})"


def canonical_name(name: object) -> str:
    """The one name of a dtype in specs; ValueError with the reason when no column may have it."""
    if isinstance(name, str) and name == BFLOAT16:
        return BFLOAT16
    try:
        dtype: np.dtype[Any] = np.dtype(name)  # type: ignore[call-overload]
    except TypeError:
        raise ValueError("is not a dtype that numpy knows") from None
    if dtype.name == BFLOAT16:
        return BFLOAT16
    if dtype.byteorder == ">" or (dtype.byteorder == "=" and sys.byteorder == "big"):
        raise ValueError("is big-endian; columns are little-endian (big-endian input is converted)")
    if dtype.kind in "mM":
        if np.datetime_data(dtype)[0] == "generic":
            raise ValueError("needs a unit, for example datetime64[ns]")
        return dtype.name
    if dtype.kind not in _KINDS:
        raise ValueError("is not a number: strings, objects and records cannot be columns")
    if dtype.name in ("longdouble", "clongdouble", "float128", "complex256", "float96", "complex192"):
        raise ValueError("has other bytes on other machines; take float64 or complex128")
    return dtype.name


def is_torch(value: object) -> bool:
    """Whether value is a torch tensor, without importing torch."""
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")


def tensor_array(tensor: torch.Tensor) -> tuple[NDArray[Any], bool]:
    """A tensor's values as an array (shared memory where it lies on the CPU), and whether they are bfloat16 bits."""
    torch_module = sys.modules["torch"]
    flat = tensor.detach()
    if flat.device.type != "cpu":
        flat = flat.cpu()
    if flat.dtype == torch_module.bfloat16:
        bits = flat.contiguous().view(torch_module.int16).numpy().view(np.uint16)
        return bits, True
    if flat.is_conj() or flat.is_neg():
        flat = flat.resolve_conj().resolve_neg()
    return flat.numpy(), False


def as_tensor(array: NDArray[Any], bfloat16: bool) -> torch.Tensor:
    """A tensor over the array's memory."""
    import torch

    if bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def bfloat16_bits(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Rounds float32 values to the nearest bfloat16, ties to even, NaN kept."""
    word = np.asarray(values, dtype=np.float32, order="C").view(np.uint32)
    rounded = (word + (np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    bits = rounded.astype(np.uint16)
    nan = (word & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if nan.any():
        bits = np.where(nan, (word >> np.uint32(16)).astype(np.uint16) | np.uint16(0x40), bits)
    return bits


def bfloat16_floats(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The exact float32 values of bfloat16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def refuse_masked(value: object) -> None:
    """Misfit for a masked array, also one in a list: what lies under its mask is nobody's value."""
    if isinstance(value, list | tuple):
        for element in value:
            refuse_masked(element)
    elif isinstance(value, np.ndarray) and type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(value)
        index = first_of(mask, mask)[0] if mask.any() else None
        raise Misfit("is a masked array, and columns hold every value: give .filled(...) or .data", index)


def to_array(value: object) -> tuple[NDArray[Any], bool]:
    """Any array-like as an array, and whether it holds bfloat16 bits. Misfit for ragged lists, strings and objects."""
    if is_torch(value):
        return tensor_array(value)  # type: ignore[arg-type]
    refuse_masked(value)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise Misfit(f"cannot become an array: {str(error).splitlines()[0]}") from None
    if array.dtype.name == BFLOAT16:
        return np.asarray(array, order="C").view(np.uint16), True
    if array.dtype.kind not in "biufcmM":
        index, first = first_of(array)
        kind = {"O": "an object", "U": "a string", "S": "a byte string", "V": "a record"}.get(
            array.dtype.kind, "no number"
        )
        raise Misfit(f"is {kind}, and columns hold numbers", index, first)
    return array, False


def first_of(array: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> tuple[tuple[int, ...] | None, Any]:
    """Index and value of the first element (where mask is True), or (None, None) for an empty array."""
    if array.size == 0:
        return None, None
    flat = 0 if mask is None else int(np.argmax(mask))
    index = tuple(int(i) for i in np.unravel_index(flat, array.shape))
    value = array[index]
    return (index or None), value.item() if isinstance(value, np.generic) else value


def fit(value: object, column: ColumnType, shape: tuple[int, ...]) -> NDArray[Any]:
    """The value as a C-contiguous array of the column's dtype and this shape; Misfit says why it does not fit."""
    array, bits = to_array(value)
    if array.shape != shape:
        raise Misfit(f"has shape {list(array.shape)}, and {list(shape)} is wanted")
    if column.bits:
        return np.asarray(_fit_bfloat16(array, bits), order="C").view(column.numpy)
    if bits:
        array = bfloat16_floats(array)
    return np.asarray(_fit_plain(array, column.numpy), order="C")


def _fit_bfloat16(array: NDArray[Any], bits: bool) -> NDArray[np.uint16]:
    if bits:
        return array
    if array.dtype.kind not in "biuf":
        raise Misfit(f"is {array.dtype.name}, which does not fit bfloat16", *first_of(array))
    floats = _fit_plain(array, np.dtype(np.float32))
    rounded = bfloat16_bits(floats)
    overflow = np.isfinite(floats) & ~np.isfinite(bfloat16_floats(rounded))
    if overflow.any():
        raise Misfit("is beyond bfloat16", *first_of(array, overflow))
    return rounded


def _fit_plain(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if array.dtype == dtype or array.size == 0:
        return array.astype(dtype, copy=False)
    have, want = array.dtype.kind, dtype.kind
    if have in "mM" or want in "mM":
        if array.dtype.newbyteorder("=") == dtype:
            return array.astype(dtype)
        raise Misfit(f"is {array.dtype.name}, and {dtype.name} is wanted", *first_of(array))
    if _RANK[have] > _RANK[want]:
        # Of values of too high a kind, one that could not even be converted is the better one to show.
        odd = array != np.trunc(array) if have == "f" else None
        at = first_of(array, odd if odd is not None and odd.any() else None)
        raise Misfit(f"is {array.dtype.name}, which does not fit {dtype.name} (convert it explicitly)", *at)
    if have in "ui" and want in "ui":
        limits = np.iinfo(dtype)
        misfit = _outside(array, int(limits.min), int(limits.max))
        if misfit is not None:
            raise Misfit(f"is outside {dtype.name} ({limits.min} to {limits.max})", *first_of(array, misfit))
        return array.astype(dtype)
    if have in "fc" and array.dtype.itemsize > dtype.itemsize:
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = array.astype(dtype)
        overflow = np.isfinite(array) & ~np.isfinite(narrow)
        if overflow.any():
            raise Misfit(f"is beyond {dtype.name}", *first_of(array, overflow))
        return narrow
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    if want == "f" and dtype.itemsize == 2 and not np.isfinite(converted).all() and have in "iu":
        raise Misfit(f"is beyond {dtype.name}", *first_of(array, ~np.isfinite(converted)))
    return converted


def _outside(array: NDArray[Any], low: int, high: int) -> NDArray[np.bool_] | None:
    if int(array.min()) >= low and int(array.max()) <= high:
        return None
    return np.asarray([not low <= int(v) <= high for v in array.ravel()], dtype=np.bool_)
