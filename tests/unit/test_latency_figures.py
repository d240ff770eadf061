"""What `netreplay latency` makes of what it measured: percentiles, shares, comparisons."""

from __future__ import annotations

import math

import numpy as np
import pytest

from netreplay.clients.latency.figures import (
    PERCENTILES,
    Block,
    Series,
    change,
    overlap,
    percentile,
    show_change,
)
from netreplay.clients.latency.measure import split


def block(total, answered=None, serving=None):
    """Microseconds in, as a block keeps them."""
    parts = [np.asarray(total), *(np.zeros(len(total)) if p is None else np.asarray(p) for p in (answered, serving))]
    return Block(*((part * 1000).astype(np.int64) for part in parts))


@pytest.mark.parametrize("count", [1, 2, 3, 9, 10, 11, 99, 100, 101, 1000, 9_999, 10_000, 25_000])
@pytest.mark.parametrize("above", PERCENTILES.values())
def test_a_percentile_is_the_least_value_that_enough_calls_do_not_exceed(count, above):
    rising = np.arange(count)
    found = int(percentile(rising, above))
    enough = count - count // above  # integers: no call is lost to the rounding of 0.9999
    assert np.count_nonzero(rising <= found) == enough
    assert enough >= math.floor(count * (1 - 1 / above))


def test_percentiles_that_the_count_does_not_support_are_none():
    for count, known in [(1, 1), (9, 1), (10, 2), (99, 2), (100, 3), (999, 3), (1000, 4), (9_999, 4), (10_000, 5)]:
        summary = Series([block(np.arange(1, count + 1))]).summary()
        told = [name for name, value in summary.percentiles.items() if value is not None]
        assert told == list(PERCENTILES)[:known], count


def test_a_summary_of_all_blocks(rng):
    values = rng.permutation(np.arange(1, 10_001))
    series = Series([block(part) for part in np.split(values, 5)])
    summary = series.summary()
    assert (summary.count, summary.least, summary.most) == (10_000, 1.0, 10_000.0)
    assert summary.mean == pytest.approx(5000.5)
    expected = {"p50": 5000, "p90": 9000, "p99": 9900, "p99.9": 9990, "p99.99": 9999}
    assert summary.percentiles == pytest.approx(expected)
    assert summary.shares is None


def test_what_is_compared_is_the_median_of_the_blocks():
    calm, disturbed = [10.0] * 9, [50.0] * 9
    summary = Series([block(calm), block(calm), block(disturbed), block([11.0] * 9), block([9.0] * 9)]).summary()
    assert summary.figure == 10.0
    assert summary.spread == (9.0, 50.0)
    assert summary.blocks == [10.0, 10.0, 50.0, 11.0, 9.0]


def test_nothing_measured_is_no_summary():
    assert Series().summary() is None
    assert len(Series().latencies()) == 0


def test_the_shares_of_each_call_add_up_to_it():
    series = Series([block([20, 30, 40], [12, 20, 30], [2, 5, 25])])
    shares = series.shares()
    assert shares.sum(axis=1) == pytest.approx([20, 30, 40])
    assert shares == pytest.approx(np.array([[8, 10, 2], [10, 15, 5], [10, 5, 25]]))
    assert series.summary().shares == pytest.approx((10, 10, 5))


def test_shares_of_clocks_that_disagree_are_cut_to_the_call():
    shares = Series([block([10, 10], [11, 8], [30, 9])]).shares()
    assert (shares >= 0).all()
    assert shares.sum(axis=1) == pytest.approx([10, 10])
    assert shares == pytest.approx(np.array([[0, 0, 10], [2, 0, 8]]))


@pytest.mark.parametrize(
    ("figure", "base", "text"),
    [
        (5.8, 10.0, "-42 % (1.72x faster)"),
        (17.2, 10.0, "+72 % (1.72x slower)"),
        (100.0, 10.0, "+900 % (10.00x slower)"),
        (10.04, 10.0, "0 % (same)"),
        (9.96, 10.0, "0 % (same)"),
    ],
)
def test_a_change_is_told_both_ways_round(figure, base, text):
    assert show_change(figure, base) == text
    assert change(figure, base) == pytest.approx(figure / base - 1)


def test_spreads_overlap_when_they_share_a_value():
    assert overlap((1, 3), (2, 4))
    assert overlap((2, 4), (1, 3))
    assert overlap((1, 4), (2, 3))
    assert overlap((1, 2), (2, 3))
    assert not overlap((1, 2), (3, 4))


@pytest.mark.parametrize(("rounds", "blocks"), [(5, 5), (7, 5), (100, 10), (103, 10)])
def test_rounds_are_split_evenly(rounds, blocks):
    parts = split(rounds, blocks)
    assert sum(parts) == rounds
    assert len(parts) == blocks
    assert max(parts) - min(parts) <= 1
