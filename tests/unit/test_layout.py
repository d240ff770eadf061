"""Layouts: aligned, without overlap but where frames are shared, pieces joined."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from specs import simple

from netreplay import Spec, SpecError
from netreplay.layout import Gather, frames_of, row_layout, step_layout


def layouts(toml: str):
    spec = Spec.from_toml(toml)
    step = step_layout(spec.stores["s"])
    return step, row_layout(spec.tables["t"], step)


def test_a_step_holds_observations_then_actions_then_results():
    step, _ = layouts(simple(observation='{dtype = "uint8", shape = [3]}', action='{dtype = "int64", shape = [2]}'))
    assert [(c.name, c.offset, c.bytes) for c in step.columns] == [
        ("obs", 0, 3),
        ("action", 8, 16),
        ("reward", 24, 4),
        ("terminated", 28, 1),
        ("truncated", 29, 1),
    ]
    assert (step.observation_bytes, step.step_bytes) == (3, 32)


@pytest.mark.parametrize(
    ("n", "stack", "frames", "next_at"),
    [
        (1, 1, [(0, 0), (0, 1)], 1),
        (3, 1, [(0, 0), (0, 1)], 1),
        (1, 4, [(-3, 0), (-2, 0), (-1, 0), (0, 0), (1, 0)], 1),
        (3, 4, [(-3, 0), (-2, 0), (-1, 0), (0, 0), (1, 0), (2, 0), (3, 0)], 3),
        (4, 4, [(-3, 0), (-2, 0), (-1, 0), (0, 0), (-3, 1), (-2, 1), (-1, 1), (0, 1)], 4),
        (5, 2, [(-1, 0), (0, 0), (-1, 1), (0, 1)], 2),
    ],
)
def test_only_the_frames_that_fields_name_are_sent(n, stack, frames, next_at):
    assert frames_of(n, stack) == (frames, next_at)


def test_frames_of_obs_and_next_obs_are_shared_where_they_can_be():
    _, row = layouts(
        simple(n=1, stack=4, observation='{dtype = "uint8", shape = [84, 84]}', action='{dtype = "int32"}')
    )
    fields = {f.name: f for f in row.fields}
    assert fields["next_obs"].offset - fields["obs"].offset == 84 * 84
    assert row.row_bytes == 40 + 4 + 5 * 7056 + 4  # rounded up to 8


def test_pieces_that_follow_one_another_are_one():
    toml = simple(
        observation='{dtype = "float32", shape = [2]}',
        action='{dtype = "int32"}',
        store='action.second = {dtype = "int32"}',
    )
    _, row = layouts(toml)
    assert row.gathers[0] == Gather(0, 0, 8, 8, 40)
    assert len(row.gathers) == 3


def test_several_columns_make_named_fields():
    _, row = layouts(simple(store='observation.depth = {dtype = "float16"}\naction.force = {dtype = "float32"}'))
    names = [f.name for f in row.fields]
    assert names[2:] == [
        "version",
        "reward",
        "discount",
        "length",
        "action.action",
        "action.force",
        "obs.obs",
        "next_obs.obs",
        "obs.depth",
        "next_obs.depth",
    ]


def test_a_sequence_is_a_row_of_runs():
    toml = simple(observation='{dtype = "uint8", shape = [84, 84]}', action='{dtype = "int32"}')
    window = "{kind = 'sequence', length = 80, stride = 40, stack = 4}"
    step, row = layouts(toml.replace("{n = 1, gamma = 0.99, stack = 1}", window))
    results = [step.column(name) for name in ("action", "reward", "terminated", "truncated")]
    at = 32
    for column, gather in zip(results, row.gathers, strict=False):
        assert gather == Gather(0, 0, column.offset, column.bytes, at, 79, 1)
        at += 80 * column.bytes
    assert row.gathers[4:] == (Gather(-3, 0, 0, 7056, at, 83, 0),)
    assert row.row_bytes == at + 84 * 7056
    fields = {f.name: f for f in row.fields}
    assert (fields["obs"].shape, fields["obs"].strides) == ((80, 4, 84, 84), (7056, 7056, 84, 1))
    assert fields["next_obs"].offset - fields["obs"].offset == 7056
    assert row.names == (
        *("version", "length", "timestep", "action", "reward", "terminated", "truncated", "obs", "next_obs", "mask"),
    )


def test_padding_at_the_head_counts_from_the_end():
    window = "{kind = 'sequence', length = 5, stack = 2, pad = 'head', columns = ['obs', 'action']}"
    _, row = layouts(simple().replace("{n = 1, gamma = 0.99, stack = 1}", window))
    assert row.gathers == (Gather(-5, 1, 16, 8, 32, 4, 1), Gather(-6, 1, 0, 16, 72, 6, 0))
    assert row.mask(np.array([5, 2, 0], np.int32)).tolist() == [
        [True] * 5,
        [False, False, False, True, True],
        [False] * 5,
    ]


def test_rows_above_what_an_offset_names_are_refused():
    toml = simple(observation='{dtype = "uint8", shape = [60000000]}')
    spec = Spec.from_toml(toml.replace("{n = 1, gamma = 0.99, stack = 1}", "{kind = 'sequence', length = 80}"))
    step = step_layout(spec.stores["s"])
    with pytest.raises(SpecError, match=r"table\.t\.window: rows of \d+ bytes are above"):
        row_layout(spec.tables["t"], step, "t")


DTYPES = ["bool", "uint8", "int16", "float16", "bfloat16", "float32", "int64", "float64", "complex64", "complex128"]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(DTYPES, DTYPES)))
def test_columns_are_aligned_to_their_items(first, second):
    toml = simple(stack=2, n=3, observation=f'{{dtype = "{first}", shape = [3]}}', action=f'{{dtype = "{second}"}}')
    step, row = layouts(toml)
    for column in step.columns:
        assert (
            column.offset % row.types["obs" if column.name == "obs" else "action"].size == 0 or column.kind == "result"
        )
    for field in row.fields:
        assert field.offset % row.types[field.name].size == 0
        assert row.row_bytes % row.types[field.name].size == 0
    assert row.row_bytes % 8 == 0
    covered = sorted((g.target, g.target + g.length) for g in row.gathers)
    assert covered[0][0] >= 40
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(covered))
    assert covered[-1][1] <= row.row_bytes


def test_the_numpy_record_shows_the_row():
    _, row = layouts(simple(stack=3, n=1))
    assert row.dtype.itemsize == row.row_bytes
    assert row.dtype["obs"] == np.dtype((np.float32, (3, 4)))
    assert row.dtype.fields["key"][1] == 0
