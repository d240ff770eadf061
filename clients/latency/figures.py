"""What is made of measured latencies: percentiles, shares, blocks, and how two memories compare."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PERCENTILES = {"p50": 2, "p90": 10, "p99": 100, "p99.9": 1000, "p99.99": 10_000}
"""name: one call in so many lies above it, and so many calls must have been measured for it to be told"""
SHARES = ("client", "wire", "server")
_NANOSECONDS = 1e-3  # microseconds


class Block(NamedTuple):
    """Calls that were made one behind the other, int64 [n] each, nanoseconds."""

    total: NDArray[np.int64]
    """from before the Python call to after it"""
    answered: NDArray[np.int64]
    """growth of Counters.answer_ns over the call"""
    serving: NDArray[np.int64]
    """growth of Counters.serving_ns over the call"""


class Shares(NamedTuple):
    """Parts of calls, in microseconds; those of one call add up to its latency, their medians need not."""

    client: float
    """in the client's own code, before its first datagram and after the last answer"""
    wire: float
    """from the first datagram to the last answer, but for what the server had of it"""
    server: float
    """between the server's receive and send stamps"""


@dataclass(frozen=True)
class Summary:
    """One operation on one memory; microseconds."""

    count: int
    least: float
    mean: float
    most: float
    percentiles: dict[str, float | None]
    """None where too few calls were measured"""
    blocks: list[float]
    """each block's p50, in the order measured"""
    figure: float
    """the median of `blocks`: what is compared"""
    shares: Shares | None
    """medians; None where nothing went over a network"""

    @property
    def spread(self) -> tuple[float, float]:
        """the least and the largest of `blocks`"""
        return min(self.blocks), max(self.blocks)


@dataclass
class Series:
    """What was measured so far of one operation on one memory."""

    blocks: list[Block] = field(default_factory=list)

    def latencies(self) -> NDArray[np.float64]:
        """Of all calls, rising, microseconds."""
        if not self.blocks:
            return np.empty(0)
        return np.sort(np.concatenate([block.total for block in self.blocks])) * _NANOSECONDS

    def shares(self) -> NDArray[np.float64] | None:
        """[calls, 3]: client, wire, server, microseconds; None where no datagram was answered.

        What was answered is cut to the call, and what the server had to what was answered: its stamps are of another
        clock.
        """
        total, answered, serving = (np.concatenate(part) for part in zip(*self.blocks, strict=True))
        if not answered.any():
            return None
        answered = np.minimum(answered, total)
        serving = np.minimum(serving, answered)
        return np.stack([total - answered, answered - serving, serving], axis=1) * _NANOSECONDS

    def summary(self) -> Summary | None:
        """None when nothing was measured."""
        if not self.blocks:
            return None
        rising = self.latencies()
        shares = self.shares()
        blocks = [float(percentile(np.sort(block.total), 2)) * _NANOSECONDS for block in self.blocks]
        return Summary(
            count=len(rising),
            least=float(rising[0]),
            mean=float(rising.mean()),
            most=float(rising[-1]),
            percentiles={
                name: float(percentile(rising, above)) if len(rising) >= above or above == 2 else None
                for name, above in PERCENTILES.items()
            },
            blocks=blocks,
            figure=statistics.median(blocks),
            shares=None if shares is None else Shares(*(float(share) for share in np.median(shares, axis=0))),
        )


def percentile(rising: NDArray[np.number], above: int) -> np.number:
    """The least of the values (rising, [n >= 1]) that all but one in `above` do not exceed: nearest rank."""
    value: np.number = rising[len(rising) - len(rising) // above - 1]
    return value


def change(figure: float, base: float) -> float:
    """By how much a latency differs from the base, as a fraction of it: -0.42 is 42 % less."""
    return figure / base - 1.0


def show_change(figure: float, base: float) -> str:
    """For people, both ways round: "-42 % (1.72x faster)", "+72 % (1.72x slower)", "0 % (same)"."""
    percent = round(100 * change(figure, base))
    if percent == 0:
        return "0 % (same)"
    factor = max(figure / base, base / figure)
    return f"{percent:+d} % ({factor:.2f}x {'faster' if percent < 0 else 'slower'})"


def overlap(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Whether two spreads have a value in common: then their difference says little."""
    return a[0] <= b[1] and b[0] <= a[1]
