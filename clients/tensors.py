"""Named tensors as bytes: the safetensors layout. 8 bytes little-endian header length, a JSON header, the data.

The header gives for each tensor its dtype, shape and byte range; ranges follow one another without holes. Written here:
entries in the caller's order, data by falling item size, so that every tensor lies aligned. Reading trusts nothing.
Source: docs/semantics.md 8; https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netreplay.dtypes import BFLOAT16, ColumnType, Misfit, as_tensor, to_array
from netreplay.errors import ColumnError, MalformedError

MAX_HEADER = 100_000_000
_METADATA = "__metadata__"
_CODES = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    BFLOAT16: "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
    "complex64": "C64",
}
_NAMES = {code: name for name, code in _CODES.items()}


def _array(name: str, value: object) -> tuple[NDArray[Any], str]:
    """A tensor's contiguous little-endian array and its dtype's name."""
    try:
        array, bits = to_array(value)
    except Misfit as misfit:
        raise ColumnError(f"tensor {name!r} {misfit}", column=name, index=misfit.index, value=misfit.value) from None
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.astype(array.dtype.newbyteorder("<"))
    dtype = BFLOAT16 if bits else array.dtype.name
    if dtype not in _CODES:
        raise ColumnError(f"tensor {name!r} is {dtype}, which the format has no code for", column=name, value=dtype)
    return np.asarray(array, order="C"), dtype


def encode(tensors: Mapping[str, object]) -> bytearray:
    """Tensors (arrays, torch tensors, numbers) as bytes; ColumnError names the tensor that cannot be written."""
    if not isinstance(tensors, Mapping):
        raise ColumnError(
            f"tensors: a mapping of names to arrays is wanted, not {type(tensors).__name__}", value=tensors
        )
    arrays: dict[str, tuple[NDArray[Any], str]] = {}
    for name, value in tensors.items():
        if not isinstance(name, str) or name == _METADATA:
            raise ColumnError(
                f"tensor {name!r}: a name is a str other than {_METADATA!r}", column=str(name), value=name
            )
        arrays[name] = _array(name, value)
    begin = 0
    ranges: dict[str, tuple[int, int]] = {}
    for name in sorted(arrays, key=lambda n: -arrays[n][0].dtype.itemsize):
        ranges[name] = (begin, begin + arrays[name][0].nbytes)
        begin = ranges[name][1]
    header = json.dumps(
        {
            name: {"dtype": _CODES[dtype], "shape": list(array.shape), "data_offsets": list(ranges[name])}
            for name, (array, dtype) in arrays.items()
        },
        separators=(",", ":"),
    ).encode()
    header += b" " * (-len(header) % 8)
    encoded = bytearray(8 + len(header) + begin)
    encoded[:8] = len(header).to_bytes(8, "little")
    encoded[8 : 8 + len(header)] = header
    data = np.frombuffer(encoded, np.uint8, offset=8 + len(header)) if begin else None
    for name, (array, _) in arrays.items():
        if data is not None and array.nbytes:
            first, last = ranges[name]
            data[first:last] = array.reshape(-1).view(np.uint8)
    return encoded


def _bad(complaint: str) -> MalformedError:
    return MalformedError(f"parameters: {complaint}")


def _header(encoded: memoryview) -> tuple[dict[str, Any], memoryview]:
    if len(encoded) < 8:
        raise _bad(f"{len(encoded)} bytes are fewer than the 8 of the header's length")
    length = int.from_bytes(encoded[:8], "little")
    if length > min(MAX_HEADER, len(encoded) - 8):
        raise _bad(f"a header of {length} bytes does not fit {len(encoded)}")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise _bad("the header names a key twice")
        return found

    try:
        header = json.loads(bytes(encoded[8 : 8 + length]), object_pairs_hook=once)
    except (ValueError, RecursionError):
        raise _bad("the header is not JSON") from None
    if not isinstance(header, dict):
        raise _bad("the header is not a JSON object")
    header.pop(_METADATA, None)
    return header, encoded[8 + length :]


def _entry(name: str, entry: Any, size: int) -> tuple[ColumnType, tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _bad(f"tensor {name!r} is not described by dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or code not in _NAMES:
        raise _bad(f"tensor {name!r} has the unknown dtype {code!r}")
    numbers = (*shape, *offsets) if isinstance(shape, list) and isinstance(offsets, list) else (None,)
    if any(type(n) is not int or not 0 <= n < 2**63 for n in numbers) or len(offsets) != 2 or len(shape) > 64:
        raise _bad(f"tensor {name!r} has no good shape and data_offsets: {shape!r}, {offsets!r}"[:300])
    kind = ColumnType(_NAMES[code])
    begin, end = offsets
    if not begin <= end <= size or end - begin != math.prod(shape) * kind.size:
        raise _bad(f"tensor {name!r}: bytes {begin} to {end} of {size} do not hold shape {shape} of {kind.name}")
    return kind, tuple(shape), begin, end


def decode(encoded: memoryview, as_torch: bool = False) -> dict[str, Any]:
    """The tensors in bytes, without a copy where they lie aligned: numpy arrays, or torch tensors.

    MalformedError for anything that does not follow the format; bfloat16 as `netreplay.dtypes` says.
    """
    header, data = _header(encoded)
    entries = {name: _entry(name, entry, len(data)) for name, entry in header.items()}
    reached = 0
    for _, _, begin, end in sorted(entries.values(), key=lambda e: (e[2], e[3])):
        if begin != reached:
            raise _bad(f"bytes {min(reached, begin)} to {max(reached, begin)} belong to no tensor, or to two")
        reached = end
    if reached != len(data):
        raise _bad(f"{len(data) - reached} bytes follow the last tensor")
    tensors: dict[str, Any] = {}
    raw = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
    for name, (kind, shape, begin, end) in entries.items():
        piece = raw[begin:end]
        if piece.size and piece.ctypes.data % kind.size:
            piece = piece.copy()
        if kind.name == "bool" and piece.size and piece.max() > 1:
            raise _bad(f"tensor {name!r} holds a byte that is no bool")
        array = piece.view(kind.numpy).reshape(shape)
        tensors[name] = as_tensor(array, kind.bits) if as_torch else array
    return tensors
