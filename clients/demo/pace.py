"""Holds table items per learner update in a narrow band, whatever the machine's speed.

The learner earns updates from items the table has taken in, strictly. The actors earn items from updates the learner
has published, with some headroom: were both strict, every row that makes no item would starve both a little more. Each
side counts differences, never totals, so that either, or the server, may die and begin again.
"""

from __future__ import annotations


class Allowance:
    """What one side may still do, earned by watching a counter of the other side's work."""

    def __init__(self, per_count: float, limit: float) -> None:
        """Earns `per_count` per unit of the watched counter; starts with, and never holds more than, `limit`."""
        self._per_count = per_count
        self._limit = limit
        self._left = limit
        self._seen: int | None = None

    def observe(self, counter: int) -> None:
        """Takes the counter's present value; one that went back (its owner restarted) earns nothing."""
        earned = 0 if self._seen is None else max(0, counter - self._seen)
        self._seen = counter
        self._left = min(self._limit, self._left + earned * self._per_count)

    def refill(self) -> None:
        """As at the start: for when the other side has begun again with nothing."""
        self._left = self._limit

    def spend(self, amount: float) -> None:
        """Uses up `amount`; may leave a debt, which is then earned back first, but never beyond the limit."""
        self._left = max(-self._limit, self._left - amount)

    @property
    def exhausted(self) -> bool:
        """True while nothing is left to spend."""
        return self._left <= 0.0
