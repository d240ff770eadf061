"""Parameters as bytes: exact both ways, and hostile bytes are refused."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from netreplay.clients.tensors import decode, encode
from netreplay.errors import ColumnError, MalformedError

TENSORS = {
    "layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "flag": np.array([True, False, True]),
    "scalar": np.float64(2.5),
    "empty": np.zeros((0, 4), np.int16),
    "half": np.array([1.5], np.float16),
    "key": np.array([2**63 + 1], np.uint64),
    "wave": np.array([1 + 2j], np.complex64),
}


def file(header: object, data: bytes = b"", length: int | None = None) -> memoryview:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return memoryview((len(text) if length is None else length).to_bytes(8, "little") + text + data)


def entry(dtype: object = "U8", shape: object = None, offsets: object = None) -> dict[str, object]:
    return {
        "dtype": dtype,
        "shape": [4] if shape is None else shape,
        "data_offsets": [0, 4] if offsets is None else offsets,
    }


def test_tensors_come_back_as_they_were_and_in_order():
    back = decode(memoryview(encode(TENSORS)))
    assert list(back) == list(TENSORS)
    for name, value in TENSORS.items():
        assert back[name].dtype == np.asarray(value).dtype
        assert np.array_equal(back[name], value)
        assert back[name].ctypes.data % back[name].itemsize == 0


def test_torch_goes_both_ways_with_bfloat16_kept():
    state = torch.nn.Linear(3, 2).state_dict() | {"b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16)}
    back = decode(memoryview(encode(state)), as_torch=True)
    assert {name: tensor.dtype for name, tensor in back.items()} == {
        name: tensor.dtype for name, tensor in state.items()
    }
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_big_endian_and_strided_arrays_are_written_right():
    tensors = {
        "b": np.arange(4, dtype=">i4"),
        "s": np.arange(10, dtype=np.int64)[::3],
        "f": np.asfortranarray(np.eye(3)),
    }
    back = decode(memoryview(encode(tensors)))
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)


def test_nothing_is_something_that_can_be_published():
    assert decode(memoryview(encode({}))) == {}


@pytest.mark.parametrize(
    "tensors",
    [
        {"x": "text"},
        {"x": object()},
        {1: np.zeros(2)},
        {"__metadata__": np.zeros(2)},
        {"x": np.zeros(2, np.complex128)},
        [("x", 1)],
        {"x": [[1], [1, 2]]},
    ],
    ids=["text", "object", "number as name", "metadata", "complex128", "no mapping", "ragged"],
)
def test_what_cannot_be_written_is_named(tensors):
    with pytest.raises(ColumnError, match="tensor"):
        encode(tensors)


HOSTILE = {
    "nothing": memoryview(b""),
    "seven bytes": memoryview(b"1234567"),
    "header longer than all": file({}, length=2**40),
    "header of 2^64-1": memoryview(b"\xff" * 8 + b"{}"),
    "not JSON": file(b"{"),
    "not UTF-8": file(b"\xff\xfe"),
    "deep JSON": file(b"[" * 100_000),
    "a list": file([]),
    "a number": file(7),
    "entry is no object": file({"x": 1}),
    "no shape": file({"x": {"dtype": "U8", "data_offsets": [0, 4]}}, b"1234"),
    "more than that": file({"x": entry() | {"y": 1}}, b"1234"),
    "unknown dtype": file({"x": entry("F128")}, b"1234"),
    "dtype is a list": file({"x": entry([])}, b"1234"),
    "negative extent": file({"x": entry(shape=[-4])}, b"1234"),
    "extent is a bool": file({"x": entry(shape=[True, 4])}, b"1234"),
    "extent is a float": file({"x": entry(shape=[4.0])}, b"1234"),
    "huge extents": file({"x": entry(shape=[2**62, 2**62, 0, 4])}, b"1234"),
    "range beyond the data": file({"x": entry(offsets=[0, 8], shape=[8])}, b"1234"),
    "range backwards": file({"x": entry(offsets=[4, 0])}, b"1234"),
    "three offsets": file({"x": entry(offsets=[0, 4, 4])}, b"1234"),
    "range of another size": file({"x": entry(shape=[3])}, b"1234"),
    "a hole": file({"x": entry(offsets=[4, 8])}, b"12345678"),
    "an overlap": file({"x": entry(), "y": entry(offsets=[2, 6])}, b"123456"),
    "bytes left over": file({"x": entry()}, b"12345"),
    "a name twice": file(
        b'{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    ),
    "a bool of 2": file({"x": entry("BOOL")}, b"\x00\x01\x02\x00"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_refused(name):
    with pytest.raises(MalformedError, match="parameters: "):
        decode(HOSTILE[name])


@settings(max_examples=300)
@given(st.binary(max_size=64), st.integers(0, 200), st.integers(0, 255))
def test_any_bytes_are_tensors_or_refused(noise, place, value):
    damaged = bytearray(encode({"a": np.arange(3, dtype=np.int32), "b": np.array(True)}))
    damaged[place % len(damaged)] = value
    for data in (noise, bytes(damaged), bytes(damaged)[: place % len(damaged)]):
        with contextlib.suppress(MalformedError):
            decode(memoryview(data))
