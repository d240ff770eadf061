"""Which values fit which columns, and what is said of those that do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from netreplay.dtypes import ColumnType, Misfit, as_tensor, bfloat16_bits, bfloat16_floats, canonical_name, fit

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "float32", "float64"]
ALL = ["bool", *INTEGERS, *FLOATS, "complex64", "complex128", "datetime64[ns]", "timedelta64[us]"]


@pytest.mark.parametrize("name", ALL)
def test_an_exact_match_passes_as_it_is(name):
    array = np.arange(6).astype(name) if name != "bool" else np.array([True, False] * 3)
    fitted = fit(array, ColumnType(name), (6,))
    assert fitted.dtype == array.dtype
    assert np.shares_memory(fitted, array)


@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS, "complex64", "complex128"])
def test_big_endian_input_is_converted_not_reinterpreted(name):
    array = np.array([1, 2, 100], name).astype(np.dtype(name).newbyteorder(">"))
    assert fit(array, ColumnType(name), (3,)).tolist() == [1, 2, 100]


@pytest.mark.parametrize(
    "make",
    [
        lambda a: np.asfortranarray(a),
        lambda a: np.repeat(a, 2, axis=0)[::2],
        lambda a: a[::-1][::-1],
        lambda a: a.T.copy().T,
        lambda a: torch.from_numpy(a.copy()),
        lambda a: a.tolist(),
        lambda a: torch.from_numpy(a.copy()).requires_grad_(),
    ],
    ids=["fortran", "sliced", "reversed", "transposed", "tensor", "list", "grad"],
)
def test_any_layout_of_the_same_values_is_the_same(make):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    array.flags.writeable = True
    assert np.array_equal(fit(make(array), ColumnType("float32"), (3, 4)), array)


def test_read_only_and_0d_and_zero_length_arrays_fit():
    fixed = np.arange(3)
    fixed.flags.writeable = False
    assert fit(fixed, ColumnType("int64"), (3,)).tolist() == [0, 1, 2]
    assert fit(np.array(7), ColumnType("uint8"), ()).shape == ()
    assert fit([], ColumnType("uint8"), (0,)).dtype == np.uint8
    assert fit(np.zeros((0, 3), np.float64), ColumnType("float32"), (0, 3)).shape == (0, 3)


REFUSED = [
    (300.7, "uint8", (), "is float64, which does not fit uint8", None, 300.7),
    ([1.0, 2.0], "int32", (2,), "is float64, which does not fit int32", (0,), 1.0),
    (300, "uint8", (), "is outside uint8 (0 to 255)", None, 300),
    ([[1, 2], [3, -4]], "uint8", (2, 2), "is outside uint8", (1, 1), -4),
    (np.uint64(2**63), "int64", (), "is outside int64", None, 2**63),
    (-1, "uint64", (), "is outside uint64", None, -1),
    (1, "bool", (), "is int64, which does not fit bool", None, 1),
    (1 + 2j, "float64", (), "does not fit float64", None, 1 + 2j),
    ([0.0, 1e300], "float32", (2,), "is beyond float32", (1,), 1e300),
    (70000.0, "float16", (), "is beyond float16", None, 70000.0),
    (100000, "float16", (), "is beyond float16", None, 100000),
    (1e39, "bfloat16", (), "is beyond float32", None, 1e39),
    (3.4e38, "bfloat16", (), "is beyond bfloat16", None, None),
    ("7", "int32", (), "is a string", None, "7"),
    (["a", "b"], "uint8", (2,), "is a string", (0,), "a"),
    (b"7", "uint8", (), "is a byte string", None, b"7"),
    (None, "float32", (), "is an object", None, None),
    ([1, None], "float32", (2,), "is an object", (0,), 1),
    ({"a": 1}, "float32", (), "is an object", None, {"a": 1}),
    ([[1, 2], [3]], "float32", (2, 2), "cannot become an array", None, None),
    (np.zeros(1, [("x", "i4")]), "int32", (1,), "is a record", None, None),
    (np.zeros(3), "float64", (4,), "has shape [3], and [4] is wanted", None, None),
    (np.zeros((1, 3)), "float64", (3,), "has shape [1, 3], and [3] is wanted", None, None),
    (np.datetime64(1, "s"), "int64", (), "is datetime64[s], and int64 is wanted", None, None),
    (5, "datetime64[ns]", (), "and datetime64[ns] is wanted", None, 5),
]


@pytest.mark.parametrize(
    ("value", "name", "shape", "complaint", "index", "shown"), REFUSED, ids=[f"{r[0]!r}-{r[1]}"[:40] for r in REFUSED]
)
def test_what_does_not_fit_is_refused_and_named(value, name, shape, complaint, index, shown):
    with pytest.raises(Misfit) as caught:
        fit(value, ColumnType(name), shape)
    assert complaint in str(caught.value)
    assert index is None or caught.value.index == index
    assert shown is None or caught.value.value == shown


@pytest.mark.parametrize("name", [*FLOATS, "bfloat16"])
def test_infinities_and_nan_stay_what_they_are(name):
    values = np.array([np.inf, -np.inf, np.nan], np.float64)
    fitted = fit(values, ColumnType(name), (3,))
    shown = bfloat16_floats(fitted.view(np.uint16)) if name == "bfloat16" else fitted
    assert np.array_equal(shown.astype(np.float64), values, equal_nan=True)


@given(st.floats(width=32, allow_nan=True, allow_infinity=True))
def test_bfloat16_rounds_as_torch_does(value):
    bits = bfloat16_bits(np.array([value], np.float32))
    theirs = torch.tensor([value], dtype=torch.float32).to(torch.bfloat16)
    if np.isnan(value):
        assert np.isnan(bfloat16_floats(bits)[0])
    else:
        assert bits.view(np.int16)[0] == theirs.view(torch.int16).numpy()[0]


def test_bfloat16_tensors_pass_bit_for_bit():
    tensor = torch.tensor([1.5, -2.25, 3e38], dtype=torch.bfloat16)
    fitted = fit(tensor, ColumnType("bfloat16"), (3,))
    assert torch.equal(as_tensor(fitted, True), tensor)


@given(st.integers(-(2**63), 2**64 - 1), st.sampled_from(INTEGERS))
def test_integers_fit_exactly_when_they_are_in_range(value, name):
    limits = np.iinfo(name)
    array = np.array(value, np.int64 if value < 2**63 else np.uint64)
    if limits.min <= value <= limits.max:
        assert int(fit(array, ColumnType(name), ())) == value
    else:
        with pytest.raises(Misfit):
            fit(array, ColumnType(name), ())


@pytest.mark.parametrize(
    ("given_name", "canonical"),
    [("f4", "float32"), (np.uint8, "uint8"), ("<i8", "int64"), ("bfloat16", "bfloat16"), ("?", "bool")],
)
def test_dtypes_have_one_name(given_name, canonical):
    assert canonical_name(given_name) == canonical
