"""A replay memory's table in plain Python: what each call must do, as docs/semantics.md and docs/engine.md say.

It follows random draws rather than making them: it is told which items were drawn, and says whether that was legal,
with which probability, and what comes of it. Nothing here looks at the C. `model_world.py` puts tables together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from netreplay.spec import DISTINCT_SAMPLERS, WEIGHTED_SAMPLERS, TableSpec

UNIT = 2**24
"""the leaf of weight one"""
LOOKING = (*WEIGHTED_SAMPLERS, "max_heap", "min_heap", "top_k")
"""samplers that never draw an item of priority zero"""
ROUNDS = 16
"""in which one call of a `distinct` sampler lets items leave that were drawn too often"""
REASONS = ("capacity", "steps", "deleted", "reset", "age", "version", "sampled")


class Wait(NamedTuple):
    """Why a call does not end now."""

    reason: str
    """`reason` of the Timeout"""
    have: int
    need: int


@dataclass(eq=False)
class Item:
    fields: dict[str, Any]
    """of its row, but for those that depend on the draw"""
    name: int
    """the first action in it: no two items of a table have the same"""
    raw: float | None
    """priority; None until it is in the table: the default"""
    version: int
    publication: int | None
    """of its version, counted from 1; None: no version"""
    key: int | None = None
    """None until somebody was told; -1: it has none"""
    state: str = "pending"
    """pending, in, gone, late or refused"""
    sampled: int = 0
    reserved: int = 0
    withheld: bool = False


@dataclass
class Limits:
    min_size: int
    spi: float
    """samples per insert; 0: no ratio"""
    least: float
    most: float
    max_sampled: int
    """0: no limit, as for the next"""
    versions: int
    """publications that stay: max_lag + 1"""
    aged: bool = False
    """a max_age so short that whatever is in the table is too old"""

    def rows(self) -> float:
        """of the largest batch that cannot wait for ever"""
        if self.spi == 0:
            return math.inf
        held = self.most - self.spi
        if self.spi == math.floor(self.spi):
            held = math.floor(held) + 1
        return max(0, math.floor(held - self.least))

    def valid(self) -> bool:
        return self.spi == 0 or (self.least <= self.most and self.rows() >= 1)


def limits_of(spec: TableSpec) -> Limits:
    limiter, size = spec.limiter, max(spec.min_size, 1)
    versions = 0 if spec.max_lag is None else spec.max_lag + 1
    if limiter.kind in ("queue", "stack"):
        return Limits(size, 1.0, 0.0, float(limiter.size or 0), 1, versions)
    limits = Limits(size, limiter.samples_per_insert or 0.0, 0.0, 0.0, spec.max_sampled or 0, versions)
    if limiter.kind == "ratio":
        middle, buffer = size * limits.spi, limiter.error_buffer or 0.0
        limits.least, limits.most = middle - buffer, middle + buffer
    return limits


@dataclass(eq=False)
class Draw:
    """One that was opened and not settled."""

    number: int
    rows: int
    size: int
    total: int
    extremes: tuple[int, int]
    resets: int
    leaves: dict[Item, int]
    """the drawable items then"""
    top: list[Item]
    """those that top_k drew from"""
    items: list[Item] | None
    """those drawn; None: the model cannot know"""


@dataclass
class Table:
    name: str
    spec: TableSpec
    limits: Limits
    items: list[Item] = field(default_factory=list)
    """in the order of insertion"""
    inserted: int = 0
    committed: int = 0
    reserved: int = 0
    forfeited: int = 0
    updated: int = 0
    stale: int = 0
    refused: int = 0
    saturated: int = 0
    draws: int = 0
    resets: int = 0
    publications: int = 0
    evicted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    running: int = 1
    """the pass of the sampler without_replacement"""
    undrawn: list[Item] = field(default_factory=list)
    """in it"""
    victim: Any = None
    """callable that finds out which of the items the remover `uniform` chose"""

    # ---- What there is ----

    def leaf(self, raw: float, count: bool = False) -> int:
        """integer leaf of a raw priority; `count` saturation"""
        if self.spec.sampler not in WEIGHTED_SAMPLERS:
            return UNIT if raw > 0 or self.spec.sampler not in LOOKING else 0
        if raw == 0:
            return 0
        weight, cap = raw**self.spec.exponent * UNIT, (2**64 - 1) // self.spec.capacity
        leaf = min(max(round(weight), 1), cap)
        self.saturated += count and (round(weight) < 1 or weight > cap)
        return leaf

    def drawable(self) -> list[Item]:
        looks = self.spec.sampler in LOOKING
        return [item for item in self.items if not item.withheld and (item.raw > 0 or not looks)]

    def ordered(self) -> list[Item]:
        """Drawable items in the order of samplers that have one; items of equal priority by age."""
        items = self.drawable()
        if self.spec.sampler == "lifo":
            return items[::-1]
        if self.spec.sampler in ("max_heap", "top_k"):
            return sorted(items, key=lambda item: -item.raw)
        if self.spec.sampler == "min_heap":
            return sorted(items, key=lambda item: item.raw)
        return items

    def total(self) -> int:
        return sum(self.leaf(item.raw) for item in self.drawable())

    def extremes(self) -> tuple[int, int]:
        """largest and least positive leaf"""
        if self.spec.sampler not in WEIGHTED_SAMPLERS:
            looks = self.spec.sampler in LOOKING  # the others know of drawable items only
            there = any(item.raw > 0 for item in self.items) if looks else bool(self.drawable())
            return (UNIT, UNIT) if there else (0, 0)
        leaves = [self.leaf(item.raw) for item in self.items if item.raw > 0]
        return max(leaves, default=0), min(leaves, default=0)

    def due(self, item: Item) -> bool:
        """Whether it is too old to be seen."""
        kept = self.publications - self.limits.versions + 1
        behind = self.limits.versions > 0 and item.publication is not None and item.publication < max(kept, 0)
        return self.limits.aged or behind

    # ---- Leaving ----

    def forfeit(self, item: Item) -> None:
        most = self.limits.max_sampled
        if most > item.sampled and self.limits.spi == most:
            self.forfeited += most - item.sampled

    def leave(self, item: Item, reason: str) -> None:
        self.forfeit(item)
        self.items.remove(item)
        if item in self.undrawn:
            self.undrawn.remove(item)
        item.state, item.withheld = "gone", False
        self.evicted[reason] += 1

    def expire(self) -> None:
        for item in [item for item in self.items if self.due(item)]:
            self.leave(item, "age" if self.limits.aged else "version")

    def first_to_leave(self, new: Item) -> Item:
        if self.spec.remover == "uniform":
            return self.victim(self, new)
        if self.spec.remover == "lowest_priority":
            return min(self.items, key=lambda item: item.raw)
        if self.spec.remover == "oldest":
            return min(self.items, key=lambda item: item.version)
        return self.items[0]

    def reset(self) -> None:
        for item in list(self.items):
            self.leave(item, "reset")
        self.inserted = self.committed = self.reserved = self.forfeited = 0
        self.resets += 1

    # ---- Inserting ----

    def insert(self, item: Item) -> Wait | None:
        if item.raw is not None and not (math.isfinite(item.raw) and item.raw >= 0):
            self.refused += 1
            item.state, item.key = "refused", -1
            return None
        self.expire()
        limits = self.limits
        if limits.spi and len(self.items) >= limits.min_size:
            taken = self.committed + self.forfeited
            wanted = max(0, math.ceil((self.inserted + 1) * limits.spi - limits.most))
            if taken < wanted:
                return Wait("limiter", taken, wanted)
        self.inserted += 1
        # What is too late when it comes takes nobody's place. Age begins with the insertion.
        if not limits.aged and self.due(item):
            self.evicted["version"] += 1
            self.forfeit(item)
            item.state, item.key = "late", -1
            return None
        raw = max((other.raw for other in self.items), default=1.0) if item.raw is None else abs(item.raw)
        if len(self.items) == self.spec.capacity:
            self.leave(self.first_to_leave(item), "capacity")
        item.raw, item.state = raw, "in"
        self.leaf(raw, count=True)
        self.items.append(item)
        self.undrawn.append(item)
        return None

    # ---- Drawing ----

    def open(self, rows: int) -> Draw | Wait:
        """A draw, or why there is none now."""
        self.expire()
        limits = self.limits
        if len(self.items) < limits.min_size:
            return Wait("limiter", len(self.items), limits.min_size)
        if limits.spi:
            allowed = max(0, math.floor(self.inserted * limits.spi - limits.least))
            drawn = self.committed + self.forfeited + self.reserved + rows
            if drawn > allowed:
                return Wait("limiter", drawn, allowed)
        distinct = self.spec.sampler in DISTINCT_SAMPLERS
        drawable = self.drawable()
        if not drawable:
            there = sum(not item.withheld for item in self.items)
            return Wait("empty", there, rows if distinct else 1)
        if distinct and rows > len(drawable):
            return Wait("empty", len(drawable), rows)
        if rows > self.allowed():
            return Wait("passes", self.allowed(), rows)
        before = self.snapshot(rows)
        wait = self.choose(before) if distinct else self.lacking(rows)
        if wait is not None:
            return wait
        self.draws += 1
        self.reserved += rows
        return before

    def snapshot(self, rows: int) -> Draw:
        leaves = {item: self.leaf(item.raw) for item in self.drawable()}
        top = self.ordered()[: self.spec.top]
        size, total = len(self.items), sum(leaves.values())
        return Draw(self.draws + 1, rows, size, total, self.extremes(), self.resets, leaves, top, None)

    def allowed(self) -> float:
        """draws that the passes still have"""
        if self.spec.passes == 0:
            return math.inf
        return len(self.undrawn) + (self.spec.passes - self.running) * len(self.drawable())

    def choose(self, draw: Draw) -> Wait | None:
        """The items of a sampler that always knows which come next."""
        most = self.limits.max_sampled
        for _ in range(ROUNDS):
            ordered = self.ordered()
            if draw.rows > len(ordered):
                return Wait("empty", len(ordered), draw.rows)
            chosen = ordered[: draw.rows]
            worn = [item for item in chosen if most and item.sampled >= most]
            for item in worn:
                self.retire(item)
            if not worn:
                for item in chosen:
                    self.count_draw(item)
                draw.items = chosen
                return None
        return Wait("leaving", len(self.items), 0)

    def retire(self, item: Item) -> None:
        """It was drawn too often for a limit that was lowered since."""
        if item.reserved:
            item.withheld = True
        else:
            self.leave(item, "sampled")

    def count_draw(self, item: Item) -> None:
        item.sampled += 1
        item.reserved += 1
        if self.limits.max_sampled and item.sampled >= self.limits.max_sampled:
            item.withheld = True

    def lacking(self, rows: int) -> Wait | None:
        """Whether the items have fewer draws left than wanted, of a sampler that draws at random."""
        most = self.limits.max_sampled
        if not most:
            return None
        left = {item: max(0, most - item.sampled) for item in self.drawable()}
        if self.spec.passes == 0:
            have = sum(left.values())
        else:
            have, first = 0, True
            for _ in range(self.running, self.spec.passes + 1):
                part = [item for item in left if left[item] and (not first or item in self.undrawn)]
                first = False
                have += len(part)
                for item in part:
                    left[item] -= 1
        if have >= rows:
            return None
        for item in self.worn():
            self.retire(item)
        return Wait("passes", self.allowed(), rows) if self.allowed() < rows else Wait("empty", have, rows)

    def worn(self) -> list[Item]:
        """Drawable items that were drawn too often: they leave when a draw meets them."""
        most = self.limits.max_sampled
        return [item for item in self.drawable() if most and item.sampled >= most]

    def follow(self, draw: Draw, drawn: list[Item]) -> list[float]:
        """The items of a draw, told now: their probabilities. AssertionError when one could not be drawn."""
        sampler = self.spec.sampler
        if draw.items is not None:
            assert [item.name for item in drawn] == [item.name for item in draw.items]
            return [1.0] * draw.rows
        draw.items = drawn
        if sampler == "without_replacement" or self.limits.max_sampled:
            return [self.follow_one(item) for item in drawn]
        for item in drawn:
            if item.state == "in":
                item.sampled += 1
                item.reserved += 1
        if sampler == "top_k":
            assert set(drawn) <= set(draw.top)
            return [1 / len(draw.top)] * draw.rows
        assert set(drawn) <= set(draw.leaves)
        if sampler == "stratified":
            self.follow_parts(draw, drawn)
        if sampler == "uniform":
            return [1 / len(draw.leaves)] * draw.rows
        assert all(draw.leaves[item] > 0 for item in drawn)
        return [float(draw.leaves[item]) / float(draw.total) for item in drawn]

    def follow_one(self, item: Item) -> float:
        drawable = self.drawable()
        assert item in drawable
        if self.spec.sampler == "without_replacement":
            if not any(other in self.undrawn for other in drawable):
                self.running += 1
                self.undrawn = list(drawable)
            assert item in self.undrawn
            chance = 1 / len(self.undrawn)
            self.undrawn.remove(item)
        elif self.spec.sampler == "top_k":
            top = self.ordered()[: self.spec.top]
            assert item in top
            chance = 1 / len(top)
        else:
            chance = float(self.leaf(item.raw)) / float(self.total())
        self.count_draw(item)
        if item.withheld and item in self.undrawn:
            self.undrawn.remove(item)
        return chance

    def follow_parts(self, draw: Draw, drawn: list[Item]) -> None:
        """One draw from each of so many equal parts of the mass: how often a leaf can be hit."""
        for item, leaf in draw.leaves.items():
            parts = leaf * draw.rows / draw.total
            assert math.floor(parts) - 1 <= drawn.count(item) <= math.ceil(parts) + 1

    def settle(self, draw: Draw, taken: bool) -> None:
        """The batch was taken, or given back."""
        counted, most = draw.resets == self.resets, self.limits.max_sampled
        limited = most > 0 or any(item.withheld for item in self.items)
        for item in draw.items or []:
            if item.state != "in":
                self.forfeited += limited and not taken and counted and most > 0 and self.limits.spi == most
                continue
            item.reserved -= 1
            item.sampled -= not taken
            if not limited:
                continue
            if most and item.sampled - item.reserved >= most:
                self.leave(item, "sampled")
            elif not most or item.sampled < most:
                item.withheld = False
        if counted:
            self.reserved -= draw.rows
            self.committed += draw.rows if taken else 0

    # ---- Changing ----

    def update(self, keys: list[int], raws: list[float], by_key: dict[int, Item]) -> list[int]:
        """Outcomes: 0 applied, 1 stale, 2 refused, 3 superseded."""
        outcomes = []
        for i, (key, raw) in enumerate(zip(keys, raws, strict=True)):
            item = by_key.get(key)
            if key in keys[i + 1 :]:
                outcomes.append(3)
            elif not (math.isfinite(raw) and raw >= 0):
                self.refused += 1
                outcomes.append(2)
            elif item is None or item.state != "in":
                self.stale += 1
                outcomes.append(1)
            else:
                item.raw = abs(raw)
                self.leaf(item.raw, count=True)
                self.updated += 1
                outcomes.append(0)
        return outcomes

    def delete(self, keys: list[int], by_key: dict[int, Item]) -> list[int]:
        outcomes = []
        for i, key in enumerate(keys):
            item = by_key.get(key)
            if key in keys[i + 1 :]:
                outcomes.append(3)
            elif item is None or item.state != "in":
                self.stale += 1
                outcomes.append(1)
            else:
                self.leave(item, "deleted")
                outcomes.append(0)
        return outcomes

    def configure(self, wanted: dict[str, Any]) -> bool:
        """False: the limits would contradict each other, and nothing is changed."""
        old = self.limits
        new = Limits(**vars(old))
        new.min_size = max(1, wanted.get("min_size", old.min_size))
        new.spi = wanted.get("samples_per_insert", old.spi)
        if "max_sampled" in wanted:
            new.max_sampled = 0 if wanted["max_sampled"] == math.inf else wanted["max_sampled"]
        if "max_lag" in wanted:
            new.versions = 0 if wanted["max_lag"] == math.inf else wanted["max_lag"] + 1
        if "max_age" in wanted:
            new.aged = wanted["max_age"] != math.inf
        middle, before = new.min_size * new.spi, old.min_size * old.spi
        if new.spi == 0:
            new.least = new.most = 0.0
            if "error_buffer" in wanted:
                return False
        elif "size" in wanted:
            new.most = float(wanted["size"])
        elif "error_buffer" in wanted:
            new.least, new.most = middle - wanted["error_buffer"], middle + wanted["error_buffer"]
        elif old.spi == 0:
            return False
        else:
            new.least, new.most = old.least + middle - before, old.most + middle - before
        if not new.valid():
            return False
        self.limits = new
        return True
