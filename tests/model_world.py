"""The model's tables on one store, and the environments that feed them: which items each row completes, in which order
they go in, and what waits. Windows are those of `reference.py`."""

from __future__ import annotations

from typing import Any, NamedTuple

from model import Draw, Item, Table, Wait, limits_of
from reference import Episode, items_of, pieces_of, sequences_of

from netreplay.spec import Spec, Window


class Row(NamedTuple):
    """What an environment does in one call."""

    observation: float
    action: int
    reward: float
    ends: int
    """0 not, 1 terminated, 2 truncated"""


class Formed(NamedTuple):
    """An item that a call completes."""

    row: int
    anchor: int
    """position of its first action in its episode"""
    table: str
    item: Item


class Environment:
    """One stream's present episode."""

    def __init__(self) -> None:
        self.observations: list[float] = []
        self.actions: list[int] = []
        self.rewards: list[float] = []
        self.ends = 0
        self.dropped = 0

    def step(self, row: Row) -> int:
        """Actions whose next observation is known already."""
        known = len(self.actions)
        self.observations.append(row.observation)
        self.actions.append(row.action)
        self.rewards.append(row.reward)
        self.ends = row.ends
        return known

    def completed(self, window: Window, known: int) -> list[tuple[int, dict[str, Any]]]:
        """Items whose last observation is that before action `known`: (first step, fields)."""
        over = known == len(self.actions)
        episode = Episode(self.observations, self.actions, self.rewards, self.ends == 1)
        if not over:  # as far as it went; what comes later shows in none of its items
            episode = Episode(self.observations[: known + 1], self.actions[:known], self.rewards[:known], False)
        if window.sequential:
            return self._sequences(window, episode, over)
        made = {item.action: item for item in items_of(episode, window.stack, window.n, window.gamma)}
        found = []
        first = max(0, known - window.n)
        for t in range(first, known if over else max(0, known - window.n + 1)):
            item = made.get(episode.actions[t])
            if item is None:
                self.dropped += 1
                continue
            fields = {"obs": item.obs, "action": item.action, "reward": item.reward, "discount": item.discount}
            if item.usable:
                fields["next_obs"] = item.next_obs
            found.append((t, {**fields, "length": item.length}))
        return found

    def _sequences(self, window: Window, episode: Episode, over: bool) -> list[tuple[int, dict[str, Any]]]:
        """Those that end with the episode, or, where it goes on, that are full with its last observation."""
        end = len(episode)
        if not over:  # another action, so that nothing here looks like the last
            episode = Episode([*episode.observations, 0.0], [*episode.actions, 0], [*episode.rewards, 0.0], False)
        made = sequences_of(episode, window)
        pieces = pieces_of(len(episode), window)
        if over and window.end == "drop":
            self.dropped += self._left_out(window, end)
        return [
            (first, fields)
            for (first, real), fields in zip(pieces, made, strict=True)
            if first + real == end and (over or real == window.length)
        ]

    @staticmethod
    def _left_out(window: Window, end: int) -> int:
        """1 where a shorter item would have been made."""
        return len(pieces_of(end, Window(**{**vars(window), "end": "pad"}))) - len(pieces_of(end, window))


class World:
    """Tables, environments, and items that wait for a limiter."""

    def __init__(self, spec: Spec, environments: int, victim: Any) -> None:
        self.tables = {name: Table(name, table, limits_of(table), victim=victim) for name, table in spec.tables.items()}
        self.environments = [Environment() for _ in range(environments)]
        self.pending: list[tuple[Table, Item]] = []
        """formed and not yet in, in order"""
        self.unflushed: list[Item] = []
        self.blocked: Wait | None = None
        """why the first of `pending` waits"""
        self.blocked_table = ""
        self.queues: dict[str, list[list[Any]]] = {name: [] for name in spec.tables}
        """batches asked for and not drawn yet, first come first: [rows, Draw or None, Wait or None]"""
        self.by_key: dict[str, dict[int, Item]] = {name: {} for name in spec.tables}
        self.by_name: dict[str, dict[int, Item]] = {name: {} for name in spec.tables}
        self.publications = 0
        self.version = 0
        self.publication: int | None = None

    # ---- Appending ----

    def form(self, rows: list[Row], finals: list[float | None], mode: str | None) -> list[Formed]:
        """The items that a call completes. `finals`: last observations, by environment."""
        formed: list[Formed] = []
        for place, (environment, row) in enumerate(zip(self.environments, rows, strict=True)):
            if mode != "same_step" and environment.ends:
                environment.observations.append(row.observation)
                formed += self._completed(place, len(environment.actions))
                self._again(place)
                continue
            formed += self._completed(place, environment.step(row))
            if mode == "same_step" and row.ends:
                environment.observations.append(finals[place])
                formed += self._completed(place, len(environment.actions))
                self._again(place)
        order = list(self.tables)
        formed.sort(key=lambda one: (one.row, one.anchor, order.index(one.table)))
        return formed

    def _again(self, place: int) -> None:
        fresh = Environment()
        fresh.dropped = self.environments[place].dropped
        self.environments[place] = fresh

    def _completed(self, place: int, known: int) -> list[Formed]:
        formed = []
        for name, table in self.tables.items():
            for first, fields in self.environments[place].completed(table.spec.window, known):
                action = self.environments[place].actions[first]
                item = Item({**fields, "version": self.version}, action, None, self.version, self.publication)
                formed.append(Formed(place, first, name, item))
        return formed

    def commit(self, formed: list[Formed], raws: list[float | None]) -> None:
        for one, raw in zip(formed, raws, strict=True):
            one.item.raw = raw
            self.by_name[one.table][one.item.name] = one.item
            self.pending.append((self.tables[one.table], one.item))
            self.unflushed.append(one.item)
        self.advance()

    # ---- Going on ----

    def advance(self) -> None:
        """Whatever waits goes on as far as it can."""
        moved = True
        while moved:
            moved = self._push() + self._draw() > 0

    def _push(self) -> int:
        count, self.blocked = 0, None
        while self.pending and self.blocked is None:
            table, item = self.pending[0]
            self.blocked, self.blocked_table = table.insert(item), table.name
            if self.blocked is None:
                self.pending.pop(0)
                count += 1
        return count

    def _draw(self) -> int:
        count = 0
        for name, queue in self.queues.items():
            while queue:
                opened = self.tables[name].open(queue[0][0])
                if isinstance(opened, Wait):
                    queue[0][2] = opened
                    break
                queue.pop(0)[1] = opened
                count += 1
        return count

    def request(self, name: str, rows: int) -> list[Any]:
        """A batch of so many rows: [rows, Draw or None, Wait or None], drawn now or when its turn comes."""
        asked: list[Any] = [rows, None, None]
        self.queues[name].append(asked)
        self.advance()
        return asked

    def give_up(self, name: str, asked: list[Any]) -> None:
        """Not wanted any more, whether drawn or not."""
        if asked in self.queues[name]:
            self.queues[name].remove(asked)
        if isinstance(asked[1], Draw):
            self.tables[name].settle(asked[1], taken=False)
        self.advance()

    # ---- Telling ----

    def tell(self, name: str, key: int, item: Item) -> None:
        """A key is said to be that item's."""
        if item.key is None:
            assert key >= 0
            assert key not in self.by_key[name], f"key {key} is another item's"
            item.key = key
            self.by_key[name][key] = item
        assert item.key == key

    def published(self, version: int) -> None:
        self.publications += 1
        for table in self.tables.values():
            table.publications = self.publications
        self.advance()

    def fetched(self, version: int) -> None:
        self.version, self.publication = version, self.publications
