"""How `netreplay latency` tells its figures: the table, the JSON, and the steps it makes up."""

from __future__ import annotations

import json

import numpy as np
import pytest

import netreplay
from netreplay.clients.latency.figures import PERCENTILES, Block, Series
from netreplay.clients.latency.record import SCHEMA, record
from netreplay.clients.latency.subject import random_steps, random_values
from netreplay.clients.latency.table import number, render


def summary(microseconds, count=100, shares=None):
    """Five blocks of equal calls."""
    answered, serving = shares or (0, 0)
    parts = [np.full(count // 5, value * 1000, np.int64) for value in (microseconds, answered, serving)]
    return Series([Block(*parts)] * 5).summary()


def row(text, name):
    return next(line for line in text.splitlines() if line.strip().startswith(name))


def test_memories_stand_side_by_side_with_the_change_against_the_first():
    text = render(["udp", "vhost"], [("insert", "append + flush", [summary(20, shares=(14, 4)), summary(11)])])
    lines = text.splitlines()
    assert lines[0] == "insert (append + flush), microseconds"
    assert lines[1].split() == ["udp", "vhost", "against", "udp"]
    assert " ".join(row(text, "median of 5 blocks").split()) == "median of 5 blocks 20.00 11.00 -45 % (1.82x faster)"
    assert row(text, "client").split() == ["client", "6.00", "-"]
    assert row(text, "wire").split() == ["wire", "10.00", "-"]
    assert row(text, "server").split() == ["server", "4.00", "-"]
    assert row(text, "p99.9 ").split() == ["p99.9", "-", "-"]
    assert row(text, "count").split() == ["count", "100", "100"]


def test_one_memory_is_compared_with_nothing():
    text = render(["local"], [("ping", "1 datagram", [summary(5)])])
    assert "against" not in text
    assert row(text, "median").split()[-1] == "5.00"


def test_overlapping_spreads_are_said():
    text = render(["a", "b"], [("ping", "", [summary(5), summary(5)])])
    assert row(text, "their spread").endswith("spreads overlap")
    assert "0 % (same)" in text
    assert "spreads overlap" not in render(["a", "b"], [("ping", "", [summary(5), summary(6)])])


def test_columns_are_aligned_over_all_operations():
    text = render(["a", "b"], [(name, "", [summary(5), summary(7_000)]) for name in ("ping", "sample")])
    ends = {line.rindex("a ") for line in text.splitlines() if line.split()[:2] == ["a", "b"]}
    assert len(ends) == 1
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_what_was_interrupted_shows_what_there_is():
    text = render(["a", "b"], [("ping", "", [summary(5), None]), ("sample", "", [None, None])])
    assert row(text, "median").split()[-2:] == ["5.00", "-"]
    assert "sample" not in text
    assert render(["a"], [("ping", "", [None])]) == ""


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.1234, "0.12"), (99.987, "99.99"), (123.45, "123.5"), (12345.6, "12346")]
)
def test_numbers_have_the_digits_that_mean_something(value, text):
    assert number(value) == text


def made(measured):
    return record(
        began="2026-01-01T00:00:00+00:00",
        seconds=1.0,
        complete=True,
        environment={},
        settings={},
        memories=[{"url": f"local:{i}", "label": f"local {i}"} for i in (1, 2)],
        measured=measured,
    )


def test_the_schema_of_the_record():
    slow, fast = summary(20, shares=(14, 4)), summary(10)
    document = json.loads(json.dumps(made([("insert", "append", [slow, fast])])))
    assert document["schema"] == SCHEMA == 1
    assert set(document) == {
        *("schema", "command", "unit", "began", "seconds", "complete"),
        *("environment", "settings", "memories", "operations"),
    }
    (operation,) = document["operations"]
    assert (operation["name"], operation["call"]) == ("insert", "append")
    first, second = operation["results"]
    assert set(first) == set(second)
    assert first["url"] == "local:1"
    assert set(first["percentiles"]) == set(PERCENTILES)
    assert first["percentiles"]["p99"] == 20.0
    assert first["percentiles"]["p99.9"] is None
    assert first["blocks"] == [20.0] * 5
    assert first["median_of_blocks"] == 20.0
    assert first["spread_of_blocks"] == [20.0, 20.0]
    assert first["shares"] == {"client": 6.0, "wire": 10.0, "server": 4.0}
    assert first["against_first"] is None
    assert second["shares"] is None
    assert second["against_first"] == {"ratio": 0.5, "change_percent": -50.0, "spreads_overlap": False}


def test_what_is_missing_is_null_in_the_record():
    assert made([("ping", "", [None, summary(1)])])["operations"][0]["results"][0] is None


COLUMNS = ["bool", "int8", "uint8", "int64", "uint64", "float16", "float32", "float64", "complex64", "datetime64[ns]"]


@pytest.mark.parametrize("dtype", [*COLUMNS, "bfloat16"])
@pytest.mark.parametrize("shape", [(), (3, 2)])
def test_random_values_fit_every_kind_of_column(dtype, shape, rng):
    spec = netreplay.Spec(
        stores={"s": netreplay.StoreSpec({"obs": netreplay.ColumnSpec(dtype, shape)})},
        tables={"t": netreplay.TableSpec("s", 100)},
    )
    values = random_values(spec.stores["s"].observation["obs"], 7, rng)
    assert values.shape == (7, *shape)
    with netreplay.connect("local:", spec=spec) as replay, replay.actor("s") as actor:
        for step in random_steps(spec.stores["s"], 2**20, rng):
            actor.append(**step)
        assert len(actor.flush()) > 0
