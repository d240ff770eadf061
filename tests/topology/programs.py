"""What test_two_hosts.py runs on the client host: python programs.py NAME URL ...

Each is told words on its standard input and tells words, with facts, on its standard output. Items are numbered: item i
has action i and frame(i), so that whoever samples it knows every byte that it must have.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import netreplay

EPISODE = 8
GAMMA = 0.99
FINAL = 2**40
"""frame(FINAL + i) ends the episode whose last action is i"""
PATIENCE = 30.0
"""seconds that a call gets which must succeed in the end"""
PAUSE = 0.02
"""seconds between two turns of those that go on until told to stop"""


def tell(word: str, **facts: Any) -> None:
    """To the test."""
    print(json.dumps([word, facts]), flush=True)


def words() -> queue.SimpleQueue[str]:
    """What the test says, as it comes; "" when it has ended."""
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            heard.put(line.strip())
        heard.put("")

    threading.Thread(target=listen, daemon=True).start()
    return heard


# ---- Items whose bytes are known ----


def frame(number: int, size: int) -> NDArray[np.uint8]:
    """uint8 [size], another for each number."""
    return np.frombuffer(np.random.default_rng(number).bytes(size), np.uint8)


def frame_bytes(replay: netreplay.Replay) -> int:
    """Of the store's only observation column."""
    (size,) = replay.spec.stores["s"].observation["obs"].shape
    return int(size)


def insert(actor: netreplay.Actor, size: int, first: int, count: int) -> None:
    """Items first, first + 1, ...: whole episodes, every second one truncated."""
    assert first % EPISODE == count % EPISODE == 0
    for i in range(first, first + count):
        done, odd = i % EPISODE == EPISODE - 1, i // EPISODE % 2 == 1
        actor.append(
            obs=frame(i, size),
            action=i,
            reward=i / 2,
            terminated=done and not odd,
            truncated=done and odd,
            priority=1.0,
        )
        if done:
            actor.end(obs=frame(FINAL + i, size), priority=1.0)


def check_row(batch: netreplay.Batch, row: int, size: int) -> int:
    """Compares every byte of a sampled item with what was inserted; its number."""
    i = int(batch["action"][row])
    done, odd = i % EPISODE == EPISODE - 1, i // EPISODE % 2 == 1
    assert batch["obs"][row].tobytes() == frame(i, size).tobytes(), f"obs of item {i}"
    following = FINAL + i if done else i + 1
    assert batch["next_obs"][row].tobytes() == frame(following, size).tobytes(), f"next_obs of item {i}"
    assert batch["reward"][row] == np.float32(i / 2)
    assert batch["discount"][row] == np.float32(0.0 if done and not odd else GAMMA)
    assert batch["length"][row] == 1
    return i


def weights() -> dict[str, NDArray[Any]]:
    """Parameters whose bytes are known: 1.2 MB."""
    rng = np.random.default_rng(7)
    return {"layer.weight": rng.standard_normal((300, 1000), np.float32), "layer.step": np.array(12, np.int64)}


def check_weights(fetched: dict[str, NDArray[Any]]) -> None:
    """Compares them byte for byte."""
    wanted = weights()
    assert list(fetched) == list(wanted)
    for name, tensor in wanted.items():
        assert fetched[name].dtype == tensor.dtype
        assert fetched[name].shape == tensor.shape
        assert fetched[name].tobytes() == tensor.tobytes()


# ---- Programs ----


def actor(url: str, count: str) -> None:
    """Inserts `count` items; fetches parameters when told, and inserts as many again under their version."""
    heard = words()
    with netreplay.connect(url, auth="off", timeout=PATIENCE) as replay, replay.actor("s") as fed:
        size = frame_bytes(replay)
        insert(fed, size, 0, int(count))
        keys = fed.flush()
        assert len(set(keys.tolist())) == int(count)
        tell("inserted", counters=replay.counters()._asdict())
        while (word := heard.get()) == "fetch":
            fetched = replay.parameters.fetch()
            assert fetched is not None
            check_weights(fetched[1])
            insert(fed, size, int(count), int(count))
            fed.flush()
            tell("fetch", version=fetched[0], counters=replay.counters()._asdict())
        assert word == ""


def each_once(replay: netreplay.Replay, count: int, size: int, versions: dict[int, int]) -> list[int]:
    """Samples until `count` items were seen and checked, then shows that there is none beside them; their numbers.

    What was seen gets priority zero and is not drawn again: an item that was stored twice would come twice.
    """
    seen: dict[int, int] = {}
    with replay.learner("t", batch_size=128, timeout=PATIENCE) as learner:
        while len(seen) < count:
            batch = learner.sample()
            fresh = {int(key): row for row, key in enumerate(batch.keys)}
            for key, row in fresh.items():
                number = check_row(batch, row, size)
                assert number not in seen, f"item {number} is stored as {seen[number]} and as {key}"
                seen[number] = key
                versions[number] = int(batch["version"][row])
            updated = learner.update_priorities(list(fresh), [0.0] * len(fresh))
            assert updated.applied == len(fresh)
        try:
            batch = learner.sample(timeout=1.0)
        except netreplay.errors.EmptyTimeout:
            return sorted(seen)
        raise AssertionError(f"beside {count} items: {sorted({int(a) for a in batch['action']})}")


def learner(url: str) -> None:
    """On "see N" samples each of N items once; "publish"; "ping"."""
    heard = words()
    with netreplay.connect(url, auth="off", timeout=PATIENCE) as replay:
        size = frame_bytes(replay)
        tell("connected")
        while word := heard.get():
            what, _, number = word.partition(" ")
            if what == "see":
                versions: dict[int, int] = {}
                numbers = each_once(replay, int(number), size, versions)
                tell(
                    "see",
                    numbers=numbers,
                    versions=[versions[i] for i in numbers],
                    inserted=replay.table("t").info().inserted,
                    counters=replay.counters()._asdict(),
                )
            elif what == "publish":
                tell("publish", version=replay.parameters.publish(weights()))
            elif what == "ping":
                tell("ping", round_trip=replay.ping().round_trip)


def paced(heard: queue.SimpleQueue[str], turn: Callable[[], None], facts: Callable[[], dict[str, Any]]) -> None:
    """Repeats `turn`, with a pause; answers "report" with facts, and "stop" too, which ends it."""
    word = "-"
    while word not in ("stop", ""):
        turn()
        try:
            word = heard.get(timeout=PAUSE)
        except queue.Empty:
            continue
        tell(word, **facts())


def keep_inserting(url: str) -> None:
    """Inserts and flushes episode after episode; reports how many items are acknowledged, and what was lost."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with netreplay.connect(url, auth="off", timeout=PATIENCE) as replay, replay.actor("s") as fed:
            size, items = frame_bytes(replay), 0

            def turn() -> None:
                nonlocal items
                insert(fed, size, items, EPISODE)
                fed.flush()
                items += EPISODE

            def facts() -> dict[str, Any]:
                losses = [(loss.first_item, loss.items) for loss in replay.losses()]
                said = [str(w.message) for w in warned if w.category is netreplay.DataLossWarning]
                return {"items": items, "losses": losses, "warnings": said, "counters": fed.counters()._asdict()}

            paced(words(), turn, facts)


def keep_sampling(url: str) -> None:
    """Samples with prefetch and checks every byte; reports how many batches came."""
    with netreplay.connect(url, auth="off", timeout=PATIENCE) as replay:
        size, batches = frame_bytes(replay), 0
        with replay.learner("t", batch_size=16, prefetch=2, timeout=PATIENCE) as sampled:

            def turn() -> None:
                nonlocal batches
                batch = next(sampled)
                for row in range(len(batch)):
                    check_row(batch, row, size)
                batches += 1

            paced(words(), turn, lambda: {"batches": batches})


def attempt(call: Callable[[], object]) -> dict[str, Any]:
    """How a call ended, and in how many seconds."""
    begin = time.monotonic()
    try:
        call()
    except netreplay.NetreplayError as error:
        return {"error": type(error).__name__, "text": str(error), "seconds": time.monotonic() - begin}
    return {"error": None, "text": "", "seconds": time.monotonic() - begin}


def caller(url: str) -> None:
    """On "ping S", "sample S", "fetch S", "update S": does it with a timeout of S seconds, and says how it ended."""
    heard = words()
    with netreplay.connect(url, auth="off", timeout=PATIENCE) as replay:
        tell("connected", counters=replay.counters()._asdict())
        with replay.learner("t", batch_size=4) as sampled:
            while word := heard.get():
                what, _, given = word.partition(" ")
                calls: dict[str, Callable[..., object]] = {
                    "ping": replay.ping,
                    "sample": sampled.sample,
                    "fetch": replay.parameters.fetch,
                    "update": partial(sampled.update_priorities, [1], [1.0]),
                }
                tell(what, **attempt(partial(calls[what], timeout=float(given))))


def connect(_: str) -> None:
    """On "connect URL" tries to, for half a second."""

    def connected(url: str) -> None:
        with netreplay.connect(url, auth="off", timeout=0.5):
            pass

    heard = words()
    while word := heard.get():
        tell("connect", **attempt(partial(connected, word.partition(" ")[2])))


def fetch(url: str) -> None:
    """Waits until parameters are there, and checks them."""
    with netreplay.connect(url, auth="off", timeout=PATIENCE) as replay:
        end = time.monotonic() + PATIENCE
        while (fetched := replay.parameters.fetch()) is None:
            assert time.monotonic() < end, "nothing was published"
        check_weights(fetched[1])
        tell("fetch", version=fetched[0])


PROGRAMS: dict[str, Callable[..., None]] = {
    made.__name__: made for made in (actor, learner, keep_inserting, keep_sampling, caller, connect, fetch)
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
