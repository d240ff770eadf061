"""The whole Python API against the plain model of `model.py`: random operations, random specs, every answer compared.

Over `local:` a call that must wait is made with timeout 0 and raises at once, with the numbers that the model says.
Over the network the same, with patience, less often, and without batches fetched ahead: when they are drawn is the
network's.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from model import REASONS, Draw, Item, Table, Wait, limits_of
from model_world import Formed, Row, World
from serving import PATIENCE, ServerProcess

import netreplay
from netreplay import ColumnSpec, Limiter, Spec, StoreSpec, TableSpec, Window
from netreplay.errors import BadCountError, BadLimitsError, ItemsRefused, Timeout
from netreplay.memory import resolve
from netreplay.spec import DISTINCT_SAMPLERS, REMOVERS, SAMPLERS, WEIGHTED_SAMPLERS

MOST_BLOCKED = 3
"""appends while items wait: credits end with 8 steps of a stream"""

USUAL = st.sampled_from([0.0, 1.0, 2.0, 4.0])  # few, so that many are equal
GOOD = USUAL | USUAL | st.sampled_from([-0.0, 0.37, 2.0**-30, 1e-300, 1e9, 1e30]) | st.floats(0.0, 100.0)
BAD = st.sampled_from([math.nan, math.inf, -math.inf, -1e-7, -1.0])
RAW = st.one_of(GOOD, GOOD, GOOD, BAD)
CHOICES = st.lists(st.integers(0, 10**6), min_size=1, max_size=6)


# ---- Specs ----


@st.composite
def windows(draw: st.DrawFn, single: bool) -> Window:
    """`single`: no row completes more than one item."""
    stack, kind = draw(st.integers(1, 3)), draw(st.sampled_from(["nstep", "nstep", "sequence", "episode"]))
    if kind == "nstep":
        return Window(n=1 if single else draw(st.integers(1, 3)), stack=stack, gamma=0.9)
    length, pad = draw(st.integers(1, 4)), draw(st.sampled_from(["tail", "head"]))
    if kind == "episode":
        return Window(kind=kind, length=length, pad=pad, stack=stack)
    stride, start = draw(st.integers(1, 5)), draw(st.integers(0, 2))
    return Window(
        kind=kind,
        length=length,
        stride=stride,
        start=start,
        stack=stack,
        pad=pad,
        end=draw(st.sampled_from(["pad", "drop", "shift"])),
    )


@st.composite
def limiters(draw: st.DrawFn, capacity: int, sampler: str) -> Limiter:
    own = {"fifo": ["queue"] * 2, "lifo": ["stack"] * 2}.get(sampler, [])
    kind = draw(st.sampled_from(["min_size", "ratio", *own]))
    if kind in ("queue", "stack"):
        return Limiter(kind=kind, size=draw(st.integers(1, capacity)))
    if kind == "min_size":
        return Limiter()
    ratio = draw(st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 4.0]))
    return Limiter(
        kind=kind, samples_per_insert=ratio, error_buffer=max(1.0, ratio) + draw(st.sampled_from([0.0, 0.5, 3.0]))
    )


@st.composite
def tables(draw: st.DrawFn, sampler: str, remover: str, plain: bool) -> TableSpec:
    """`plain`: one item at a time, none of which waits for a limiter."""
    capacity = draw(st.integers(1, 6) | st.integers(1, 50))
    limiter = Limiter() if plain else draw(limiters(capacity, sampler))
    once = limiter.kind in ("queue", "stack")
    return TableSpec(
        store="s",
        capacity=capacity,
        sampler=sampler,
        remover=remover,
        exponent=draw(st.sampled_from([0.0, 0.5, 1.0, 1.0])),
        min_size=draw(st.integers(0, 1 if once else min(capacity, 5))),
        window=draw(windows(plain)),
        limiter=limiter,
        max_sampled=1 if once else draw(st.none() | st.integers(1, 4)),
        max_lag=draw(st.none() | st.integers(0, 2)),
        top=draw(st.integers(1, 8)) if sampler == "top_k" else None,
        passes=draw(st.integers(0, 3)) if sampler == "without_replacement" else 0,
    )


@st.composite
def configurations(draw: st.DrawFn, sampler: str) -> tuple[Spec, int, str | None]:
    """A spec whose first table has that sampler, environments, and how their episodes end."""
    removers = draw(st.tuples(*[st.sampled_from([*REMOVERS, "fifo", "lowest_priority", "oldest"])] * 2))
    plain = "uniform" in removers  # else nobody could say which items were there as it chose
    samplers = (sampler, draw(st.sampled_from(SAMPLERS)))
    both = zip(("t", "u"), samplers, removers, strict=True)
    made = {name: draw(tables(sampler, remover, plain)) for name, sampler, remover in both}
    if draw(st.booleans()):
        del made["u"]
    environments = 1 if plain else draw(st.integers(1, 3))
    mode = None if environments == 1 else draw(st.sampled_from(["next_step", "same_step"]))
    columns = {"obs": ColumnSpec("float32", (1,))}
    # Steps are never what runs out: which items leave then depends on who shares them.
    store = StoreSpec(columns, {"action": ColumnSpec("int64")}, steps=3000, streams=4)
    return Spec({"s": store}, made), environments, mode


# ---- Comparing ----


def shown(batch: Any, field: str, row: int) -> Any:
    """A field of one row as the model holds it: nested lists, observations without their axis of one."""
    array = np.asarray(batch[field][row])
    if field in ("obs", "next_obs"):
        array = array[..., 0]
        stacked = batch.window.stack > 1
        array = array if stacked else array[..., None]
    return array.tolist()


def name_of(batch: Any, row: int) -> int:
    """The first action in it."""
    actions = np.asarray(batch["action"][row])
    return int(actions[np.asarray(batch["mask"][row])][0] if actions.ndim else actions)


def check_fields(batch: Any, row: int, item: Item) -> None:
    for field, wanted in item.fields.items():
        if field == "discount":
            wanted = float(np.float32(wanted))
        assert shown(batch, field, row) == wanted, field


class Machine(RuleBasedStateMachine):
    """Operations on one connection; `network` "" is `local:`."""

    network = ""
    sampler = ""
    """of the first table; "": any"""

    # ---- The beginning and the end ----

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        sampler = self.sampler or data.draw(st.sampled_from(SAMPLERS))
        spec, environments, self.mode = data.draw(configurations(sampler))
        self.world = World(spec, environments, self.find_victim)
        self.replay, self.server, self.folder = self.connect(spec)
        self.actor = self.replay.actor("s", num_envs=environments, autoreset=self.mode, timeout=self.soon)
        self.ahead: dict[str, tuple[netreplay.Learner, list[list[Any]]]] = {}
        self.number = self.blocked_appends = 0

    def connect(self, spec: Spec) -> tuple[netreplay.Replay, ServerProcess | None, Any]:
        if not self.network:
            return netreplay.connect("local:", spec=spec), None, None
        folder = tempfile.TemporaryDirectory(prefix="netreplay-")
        where = Path(folder.name)
        options = {"listen": f"vhost://{where}/s.sock"} if self.network == "vhost" else {}
        server = ServerProcess(toml_of(spec), where / "server", **options)
        server.start()
        return netreplay.connect(server.url, auth="off"), server, folder

    def teardown(self) -> None:
        if not hasattr(self, "replay"):
            return
        for learner, _ in self.ahead.values():
            learner.close()
        waiting = bool(self.world.pending)
        try:
            self.replay.close()
        except netreplay.NetreplayError:
            assert waiting  # what was not stored is named
        if self.server is not None:
            self.server.__exit__()
            self.folder.cleanup()

    @property
    def soon(self) -> float:
        """seconds for a call that must wait"""
        return 0.15 if self.network else 0.0

    @property
    def now(self) -> float:
        """seconds for a call that need not wait"""
        return PATIENCE if self.network else 0.0

    @contextmanager
    def waits(self, wait: Wait, table: str) -> Iterator[None]:
        """The call raises the Timeout that names this reason, these numbers and this table."""
        with pytest.raises(Timeout) as caught:
            yield
        found = caught.value
        assert (found.reason, found.have, found.need, found.table) == (*wait, table), str(found)

    def table(self, choice: int) -> Table:
        names = list(self.world.tables)
        return self.world.tables[names[choice % len(names)]]

    def find_victim(self, table: Table, new: Item) -> Item:
        """Which item the remover `uniform` chose: the one that is not there any more."""
        keys = [item.key for item in table.items]
        found = self.replay.table(table.name).get(keys).found
        gone = [item for item, there in zip(table.items, found, strict=True) if not there]
        assert len(gone) == 1
        return gone[0]

    # ---- Appending ----

    @rule(
        ends=st.lists(st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=3, max_size=3), min_size=1, max_size=6),
        how=st.sampled_from(["default", "number", "array", "callable", "tables"]),
        raws=st.lists(RAW, min_size=1, max_size=4),
    )
    def append(self, ends: list[list[int]], how: str, raws: list[float]) -> None:
        for each in ends:
            if self.world.pending:
                if self.blocked_appends == MOST_BLOCKED:
                    break
                self.blocked_appends += 1
            else:
                self.blocked_appends = 0
            self.append_row(each, how, raws)
            self.flush()

    def append_row(self, ends: list[int], how: str, raws: list[float]) -> None:
        environments = self.world.environments
        rows, finals = [], []
        ending = self.mode is None and bool(environments[0].ends)
        for place in range(len(environments)):
            self.number += 1
            rows.append(Row(float(self.number), self.number, float(self.number % 7 - 3), ends[place]))
            finals.append(self.number + 0.5)
        awaited = [bool(environment.ends) for environment in environments]
        formed = self.world.form(rows, finals, self.mode)
        priority, given = self.priorities(how, raws, formed)
        if ending:
            self.actor.end(obs=[rows[0].observation], priority=priority)
        elif self.mode is None:
            row = rows[0]
            self.actor.append(
                obs=[row.observation],
                action=row.action,
                reward=row.reward,
                terminated=row.ends == 1,
                truncated=row.ends == 2,
                priority=priority,
            )
        else:
            # What a row that only resets says besides its observation means nothing.
            more = {}
            if self.mode == "same_step" and any(row.ends for row in rows):
                mask = np.array([row.ends > 0 for row in rows])
                more = {"final": np.array(finals, np.float32)[:, None], "final_mask": mask}
            quiet = [self.mode == "next_step" and waiting for waiting in awaited]
            codes = [0 if still else row.ends for row, still in zip(rows, quiet, strict=True)]
            self.actor.append(
                obs=np.array([[row.observation] for row in rows], np.float32),
                action=np.array([row.action for row in rows]),
                reward=np.array([row.reward for row in rows], np.float32),
                terminated=np.array([code == 1 for code in codes]),
                truncated=np.array([code == 2 for code in codes]),
                priority=priority,
                **more,
            )
        self.world.commit(formed, given)

    def priorities(self, how: str, raws: list[float], formed: list[Formed]) -> tuple[Any, list[float | None]]:
        """What the call is given, and what each item has of it."""
        count = len(self.world.environments)
        by_row = [raws[place % len(raws)] for place in range(count)]
        if how == "number":
            return raws[0], [raws[0]] * len(formed)
        if how == "array":
            return np.array(by_row), [by_row[one.row] for one in formed]
        if how == "default":
            return None, [None] * len(formed)

        def by_item(table: str) -> Any:
            mine = [one for one in formed if one.table == table]

            def call(fields: dict[str, Any]) -> list[float]:
                assert fields["row"].tolist() == [one.row for one in mine]
                for place, one in enumerate(mine):
                    for name, wanted in one.item.fields.items():
                        value = np.asarray(fields[name][place])
                        assert np.array_equal(
                            value.reshape(-1),
                            np.float32(wanted).reshape(-1) if name == "discount" else np.reshape(wanted, -1),
                        ), name
                return [raws[place % len(raws)] for place in range(len(mine))]

            return call

        seen = dict.fromkeys(self.world.tables, 0)
        given: list[float | None] = []
        for one in formed:
            given.append(raws[seen[one.table] % len(raws)])
            seen[one.table] += 1
        if how == "callable" and len(self.world.tables) == 1:
            return by_item("t"), given
        return {name: by_item(name) for name in self.world.tables}, given

    def flush(self) -> None:
        """The keys of what went in; or why something waits."""
        if self.world.pending:
            assert self.world.blocked is not None
            with self.waits(self.world.blocked, self.world.blocked_table):
                self.actor.flush(timeout=self.soon)
            return
        refused = [i for i, item in enumerate(self.world.unflushed) if item.state == "refused"]
        try:
            keys, told = self.actor.flush(timeout=self.now), []
        except ItemsRefused as error:
            keys = error.keys
            told = error.refused
        assert [refusal.index for refusal in told] == refused
        for refusal in told:
            assert repr(refusal.value) == repr(self.world.unflushed[refusal.index].raw)
        assert len(keys) == len(self.world.unflushed)
        for key, item in zip(keys.tolist(), self.world.unflushed, strict=True):
            if item.key == -1:
                assert key == -1
            else:
                table = next(name for name, named in self.world.by_name.items() if named.get(item.name) is item)
                self.world.tell(table, key, item)
        self.world.unflushed.clear()

    # ---- Sampling ----

    @rule(
        choice=st.integers(0, 1),
        rows=st.integers(1, 3) | st.integers(1, 8) | st.integers(1, 40),
        times=st.integers(1, 3),
    )
    def sample(self, choice: int, rows: int, times: int) -> None:
        table = self.table(choice)
        if self.world.queues[table.name]:
            return  # it would wait behind those, whose learner has the numbers
        learner = self.learner(table, rows)
        if learner is None:
            return
        with learner:
            for _ in range(times):
                asked = self.world.request(table.name, rows)
                if asked[1] is None:
                    with self.waits(asked[2], table.name):
                        learner.sample(timeout=self.soon)
                    self.world.give_up(table.name, asked)
                    self.see_worn(table)
                    return
                batch = learner.sample(timeout=self.now)
                self.take(table, batch, asked[1])
                self.check_counters()

    def learner(self, table: Table, rows: int, prefetch: int = 0) -> netreplay.Learner | None:
        most = min(256, table.spec.capacity) if table.spec.sampler in DISTINCT_SAMPLERS else math.inf
        limited = max(table.limits.rows(), limits_of(table.spec).rows())
        if rows > min(most, limited):
            with pytest.raises(BadCountError, match="batch_size"):
                self.replay.learner(table.name, batch_size=rows, prefetch=prefetch)
            return None
        return self.replay.learner(table.name, batch_size=rows, prefetch=prefetch)

    def take(self, table: Table, batch: netreplay.Batch, draw: Draw) -> None:
        """A batch in hand: whether it could be drawn, what it says of each item, and its weights."""
        self.see_worn(table)
        drawn = [self.world.by_name[table.name][name_of(batch, row)] for row in range(len(batch))]
        chances = table.follow(draw, drawn)
        assert batch.probabilities.tolist() == chances
        for row, item in enumerate(drawn):
            check_fields(batch, row, item)
            self.world.tell(table.name, int(batch.keys[row]), item)
        head = batch.draws[0]
        assert (head["number"], head["size"], head["total"]) == (draw.number, draw.size, draw.total)
        assert (head["max_leaf"], head["min_leaf"]) == draw.extremes
        self.check_weights(table, batch, draw, chances)
        table.settle(draw, taken=True)
        self.world.advance()

    @staticmethod
    def check_weights(table: Table, batch: netreplay.Batch, draw: Draw, chances: list[float]) -> None:
        if table.spec.sampler not in WEIGHTED_SAMPLERS:
            assert batch.weights(0.5).tolist() == [1.0] * len(batch)
            return
        raw = (1 / draw.size / np.array(chances)) ** 0.5
        assert np.allclose(batch.weights(0.5, None), raw, rtol=1e-6)
        assert np.allclose(batch.weights(0.5, "batch"), raw / raw.max(), rtol=1e-6)
        assert batch.weights(0.0).tolist() == [1.0] * len(batch)
        if not table.limits.max_sampled:  # else the total changes within the batch
            largest = (draw.total / draw.size / draw.extremes[1]) ** 0.5
            assert np.allclose(batch.weights(0.5, "table"), raw / largest, rtol=1e-6)

    def see_worn(self, table: Table) -> None:
        """Items drawn too often for a limit that was lowered leave when a draw meets them: the model is told which."""
        worn = table.worn()
        if not worn or table.spec.sampler in DISTINCT_SAMPLERS:
            return
        found = self.replay.table(table.name).get([item.key for item in worn]).found
        for item, there in zip(worn, found, strict=True):
            if not there:
                table.retire(item)

    # ---- Fetched ahead ----

    @precondition(lambda self: not self.network)
    @rule(choice=st.integers(0, 1), rows=st.integers(1, 5), prefetch=st.integers(1, 3))
    def fetch_ahead(self, choice: int, rows: int, prefetch: int) -> None:
        table = self.table(choice)
        hidden = table.spec.sampler not in DISTINCT_SAMPLERS
        if table.name in self.ahead or (
            hidden and (table.limits.max_sampled or table.spec.sampler == "without_replacement")
        ):
            return
        learner = self.learner(table, rows, prefetch)
        if learner is not None:
            self.ahead[table.name] = (learner, [])
            self.take_ahead(choice, 1)

    @precondition(lambda self: self.ahead)
    @rule(choice=st.integers(0, 1), times=st.integers(1, 3))
    def take_ahead(self, choice: int, times: int) -> None:
        table = self.table(choice)
        if table.name not in self.ahead:
            return
        learner, started = self.ahead[table.name]
        for _ in range(times):
            while len(started) <= learner.prefetch:
                started.append(self.world.request(table.name, learner.batch_size))
            if started[0][1] is None:
                with self.waits(started[0][2], table.name):
                    learner.sample(timeout=0)
                return
            batch = learner.sample(timeout=0)
            self.take(table, batch, started.pop(0)[1])

    @precondition(lambda self: self.ahead)
    @rule(choice=st.integers(0, 1))
    def drop_ahead(self, choice: int) -> None:
        table = self.table(choice)
        if table.name not in self.ahead:
            return
        learner, started = self.ahead.pop(table.name)
        learner.close()
        for asked in started:
            self.world.give_up(table.name, asked)

    # ---- Priorities, deletion, looking ----

    def keys(self, table: Table, choices: list[int]) -> list[int]:
        """Of items there and gone, some twice, and now and then of none."""
        known = list(self.world.by_key[table.name])[-60:]
        return [known[choice % len(known)] if known and choice % 17 else choice for choice in choices]

    @rule(
        choice=st.integers(0, 1),
        choices=CHOICES,
        raws=st.lists(RAW, min_size=6, max_size=6),
        delete=st.none() | CHOICES,
    )
    def update(self, choice: int, choices: list[int], raws: list[float], delete: list[int] | None) -> None:
        table = self.table(choice)
        by_key = self.world.by_key[table.name]
        keys, raws = self.keys(table, choices), raws[: len(choices)]
        gone = None if delete is None else self.keys(table, delete)
        # What a draw that is not taken yet holds may leave meanwhile: its batch stays whole.
        wanted = table.update(keys, raws, by_key)
        with self.replay.learner(table.name, batch_size=1) as learner:
            result = learner.update_priorities(np.array(keys), np.array(raws), delete=gone)
        assert result.outcome.tolist() == wanted
        assert result[:4] == tuple(wanted.count(outcome) for outcome in range(4))
        if gone is not None:
            deleted = table.delete(gone, by_key)
            assert result.deleted is not None
            assert result.deleted.outcome.tolist() == deleted
        self.world.advance()

    @rule(choice=st.integers(0, 1), choices=CHOICES)
    def delete(self, choice: int, choices: list[int]) -> None:
        table = self.table(choice)
        keys = self.keys(table, choices)
        wanted = table.delete(keys, self.world.by_key[table.name])
        result = self.replay.table(table.name).delete(keys)
        assert result.outcome.tolist() == wanted
        assert result[:3] == (wanted.count(0), wanted.count(1), wanted.count(3))
        self.world.advance()

    @rule(choice=st.integers(0, 1), choices=CHOICES)
    def get(self, choice: int, choices: list[int]) -> None:
        table = self.table(choice)
        keys = self.keys(table, choices)
        rows = self.replay.table(table.name).get(keys)
        total, drawable = table.total(), table.drawable()
        for row, key in enumerate(keys):
            item = self.world.by_key[table.name].get(key)
            there = item is not None and item.state == "in" and not table.due(item)
            assert rows.found[row] == there
            if not there:
                assert (rows.keys[row], rows.probabilities[row]) == (-1, 0)
                assert not any(np.any(rows[field][row]) for field in rows.fields)
                continue
            assert item is not None
            assert rows.keys[row] == key
            check_fields(rows, row, item)
            chance = float(table.leaf(item.raw)) / float(total) if item in drawable else 0.0
            if not self.ahead or table.spec.sampler in DISTINCT_SAMPLERS or not table.limits.max_sampled:
                assert rows.probabilities[row] == chance

    @rule(choice=st.integers(0, 1))
    def histograms(self, choice: int) -> None:
        table = self.table(choice)
        found = self.replay.table(table.name).histograms()
        assert found.items == len(table.items)
        raws = np.array([item.raw for item in table.items])
        assert found.priority.counts.tolist() == np.histogram(raws, found.priority.edges)[0].tolist()
        if table.name not in self.ahead:
            sampled = [item.sampled for item in table.items]
            assert found.sampled.counts.tolist() == np.histogram(sampled, found.sampled.edges)[0].tolist()

    # ---- Limits, reset, parameters ----

    @rule(
        choice=st.integers(0, 1),
        min_size=st.none() | st.integers(0, 6),
        ratio=st.none() | st.sampled_from([0, 0.5, 1.0, 2.0]),
        buffer=st.none() | st.sampled_from([2.0, 2.5, 4.0]),
        max_sampled=st.none() | st.sampled_from([1, 2, 3, math.inf]),
        max_lag=st.none() | st.sampled_from([0, 1, 2, math.inf]),
        size=st.integers(1, 50),
    )
    def configure(self, choice: int, size: int, **asked: Any) -> None:
        table = self.table(choice)
        names = {"min_size": "min_size", "ratio": "samples_per_insert", "buffer": "error_buffer"}
        wanted = {names.get(name, name): value for name, value in asked.items() if value is not None}
        if "min_size" in wanted:
            wanted["min_size"] = min(wanted["min_size"], table.spec.capacity)
        if table.spec.limiter.kind in ("queue", "stack"):
            wanted = {"size": min(size, table.spec.capacity), **{k: v for k, v in wanted.items() if k == "max_lag"}}
        if any(other.spec.remover == "uniform" for other in self.world.tables.values()):
            wanted.pop("samples_per_insert", None)
            wanted.pop("error_buffer", None)
        if table.name in self.ahead or table.spec.sampler == "without_replacement":
            wanted.pop("max_sampled", None)  # how often each was drawn is not known, or not in which pass
        if not wanted:
            return
        handle = self.replay.table(table.name)
        if not table.configure(wanted):
            with pytest.raises(BadLimitsError):
                handle.configure(**wanted)
            return
        limits, mine = handle.configure(**wanted), table.limits
        assert (limits.min_size, limits.samples_per_insert) == (mine.min_size, mine.spi)
        assert (limits.least, limits.most) == (mine.least, mine.most)
        assert limits.max_sampled == (mine.max_sampled or None)
        assert limits.max_lag == (mine.versions - 1 if mine.versions else None)
        self.world.advance()
        self.see_worn(table)

    @precondition(lambda self: not self.network and not self.world.pending)
    @rule(choice=st.integers(0, 1))
    def all_grow_too_old(self, choice: int) -> None:
        table = self.table(choice)
        if self.world.queues[table.name]:
            return
        handle = self.replay.table(table.name)
        handle.configure(max_age=1e-9)
        table.configure({"max_age": 1e-9})
        self.world.advance()
        asked = self.world.request(table.name, 1)
        with self.waits(asked[2], table.name), self.replay.learner(table.name, batch_size=1) as learner:
            learner.sample(timeout=0)
        self.world.give_up(table.name, asked)
        handle.configure(max_age=math.inf)
        table.configure({"max_age": math.inf})
        self.world.advance()

    @rule(choice=st.integers(0, 1), sure=st.integers(0, 3))
    def reset(self, choice: int, sure: int) -> None:
        if sure == 0:
            table = self.table(choice)
            self.replay.table(table.name).reset()
            table.reset()
            self.world.advance()

    @rule(fetch=st.booleans())
    def publish(self, fetch: bool) -> None:
        version = self.replay.parameters.publish({"w": np.zeros(1, np.float32)})
        self.world.published(version)
        if fetch:
            fetched = self.replay.parameters.fetch()
            assert fetched is not None
            assert fetched[0] == version
            self.world.fetched(version)

    # ---- After each ----

    @invariant()
    def check_counters(self) -> None:
        """Every number that the table tells of itself. Over the network some come a moment later."""
        if not hasattr(self, "world"):
            return
        for table in self.world.tables.values():  # who looks at the numbers lets items leave; a server's loop anyway
            table.expire()
        self.world.advance()
        deadline = time.monotonic() + (2.0 if self.network else 0.0)
        while (found := self.told()) != (wanted := self.expected()) and time.monotonic() < deadline:
            time.sleep(0.001)
        for name, numbers in wanted.items():
            differ = {key: (found[name][key], value) for key, value in numbers.items() if found[name][key] != value}
            assert not differ, f"table {name!r}: {differ}"
        if not self.world.pending and self.world.unflushed:
            self.flush()
        dropped = sum(environment.dropped for environment in self.world.environments)
        assert self.actor.counters().truncated_dropped == dropped

    def told(self) -> dict[str, Any]:
        names = (
            "size",
            "inserted",
            "sampled",
            "reserved",
            "updated",
            "stale",
            "refused",
            "total",
            "max_leaf",
            "min_leaf",
        )
        return {
            name: {
                **{key: getattr(info, key) for key in (*names, "max_priority", "saturated")},
                **{key: getattr(info, f"evicted_{key}") for key in REASONS},
            }
            for name, info in self.replay.tables().items()
        }

    def expected(self) -> dict[str, Any]:
        return {name: self.expected_of(table) for name, table in self.world.tables.items()}

    @staticmethod
    def expected_of(table: Table) -> dict[str, Any]:
        largest, least = table.extremes()
        return {
            "size": len(table.items),
            "inserted": table.inserted,
            "sampled": table.committed,
            "reserved": table.reserved,
            "updated": table.updated,
            "stale": table.stale,
            "refused": table.refused,
            "total": table.total(),
            "max_leaf": largest,
            "min_leaf": least,
            "max_priority": max((item.raw for item in table.items), default=0.0),
            "saturated": table.saturated,
            **table.evicted,
        }


def toml_of(spec: Spec) -> str:
    """The spec as a server's config."""
    lines = ["[store.s]", 'observation.obs = {dtype = "float32", shape = [1]}', 'action.action = {dtype = "int64"}']
    store = resolve(spec).stores["s"]
    lines += [f"{size} = {getattr(store, size)}" for size in ("steps", "streams", "in_flight")]

    def inline(values: Any) -> str:
        pairs = [f"{key} = {value!r}" for key, value in vars(values).items() if value is not None]
        return "{" + ", ".join(pairs) + "}"

    for name, table in spec.tables.items():
        lines += [f"[table.{name}]"]
        for key, value in vars(table).items():
            if value is not None:
                lines.append(f"{key} = {inline(value) if key in ('window', 'limiter') else repr(value)}")
    return "\n".join(lines)


QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


def run(sampler: str, network: str, examples: int, steps: int) -> None:
    machine = type(f"Machine_{sampler}_{network}", (Machine,), {"sampler": sampler, "network": network})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=os.environ.get("CI", "").lower() in ("1", "true"),  # other examples by hand
            database=None,
            suppress_health_check=QUIET,
            report_multiple_bugs=False,
            print_blob=True,
        ),
    )


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_memory_does_what_the_model_says(sampler: str) -> None:
    run(sampler, "", 25, 40)
