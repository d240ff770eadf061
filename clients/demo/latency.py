"""How long calls took, as histograms that add up over processes and their restarts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PER_OCTAVE = 16  # buckets for each doubling: a percentile is read to within 4.5%


def _middle(bucket: int) -> float:
    """Seconds in the middle of a bucket."""
    return float(2.0 ** ((bucket + 0.5) / PER_OCTAVE)) * 1e-9


class Histogram:
    """Durations counted in buckets of equal ratio; bucket b holds 2^(b/16) to 2^((b+1)/16) nanoseconds."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: dict[int, int] = dict(counts or {})

    def add(self, seconds: float) -> None:
        """Counts one duration."""
        bucket = int(math.log2(max(seconds, 1e-9) * 1e9) * PER_OCTAVE)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1

    def merge(self, other: Histogram) -> None:
        """Adds what another counted."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count

    @property
    def total(self) -> int:
        """How many durations were counted."""
        return sum(self.counts.values())

    @property
    def seconds(self) -> float:
        """Sum of the durations, each taken as the middle of its bucket."""
        return sum(count * _middle(bucket) for bucket, count in self.counts.items())

    def percentile(self, fraction: float) -> float:
        """Seconds that `fraction` of the durations stay below (the middle of its bucket); NaN when none was counted."""
        left = fraction * self.total
        for bucket in sorted(self.counts):
            left -= self.counts[bucket]
            if left <= 0:
                return _middle(bucket)
        return math.nan


class Stopwatch:
    """Histograms by name, since they were last taken."""

    def __init__(self) -> None:
        self._histograms: dict[str, Histogram] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Counts how long its block takes; nothing when the block raises."""
        begin = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - begin)

    def add(self, name: str, seconds: float) -> None:
        """Counts one duration."""
        self._histograms.setdefault(name, Histogram()).add(seconds)

    def take(self) -> dict[str, Histogram]:
        """What was counted since the last call."""
        taken, self._histograms = self._histograms, {}
        return taken


def human(seconds: float) -> str:
    """For people, three digits: "84.1 us", "1.20 ms"; "-" for NaN."""
    if math.isnan(seconds):
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        value = seconds / size
        if value >= 1.0 or unit == "us":
            break
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
