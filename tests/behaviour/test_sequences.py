"""Sequences and whole episodes: windows of many steps, compared with a model of a few lines. Semantics 2."""

from __future__ import annotations

import json
import os
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from reference import Episode, items_of, pieces_of, returns_of, sequences_of
from serving import PATIENCE
from specs import simple

import netreplay
from netreplay import Spec, Window
from netreplay.errors import BadConfigError, BadCountError, DataLossWarning

STEP = '{dtype = "float32", shape = [1]}'


def toml_of(window: Window, *, capacity: int = 3000, more: str = "", sampler: str = "fifo") -> str:
    keys = {key: value for key, value in vars(window).items() if value is not None}
    if window.kind == "episode":
        keys = {key: keys[key] for key in ("kind", "length", "stack", "pad", "n", "gamma", "columns") if key in keys}
    # JSON's strings, numbers and lists are TOML's too.
    inner = ", ".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    text = simple(observation=STEP, capacity=capacity, sampler=sampler, more=more)
    return text.replace("window = {n = 1, gamma = 0.99, stack = 1}", f"window = {{{inner}}}")


def random_episodes(rng, count: int, longest: int, first: int = 0) -> list[Episode]:
    """Each observation a number of its own; rewards that no float32 sum is exact for."""
    made = []
    for _ in range(count):
        length = int(rng.integers(1, longest + 1))
        observations = [float(first + i) for i in range(length + 1)]
        first += length + 1
        rewards = [float(np.float32(value)) for value in rng.normal(size=length)]
        made.append(Episode(observations, [int(o) for o in observations[:-1]], rewards, bool(rng.integers(2))))
    return made


def play(actor, episode: Episode, priority=None, end: bool = True) -> None:
    for t in range(len(episode)):
        last = t == len(episode) - 1
        actor.append(
            obs=np.array([episode.observations[t]], np.float32),
            action=episode.actions[t],
            reward=episode.rewards[t],
            terminated=last and end and episode.terminated,
            truncated=last and end and not episode.terminated,
            priority=priority,
        )
    if end:
        actor.end(obs=np.array([episode.observations[-1]], np.float32), priority=priority)


def compare(rows, expected: list[dict], window: Window) -> None:
    """Every field of every row, and its dtype and shape."""
    steps, stack = window.length, window.stack
    shapes = {"obs": (steps, stack, 1) if stack > 1 else (steps, 1), "length": (), "timestep": (), "version": ()}
    shapes["next_obs"] = shapes["obs"]
    dtypes = {"action": np.int64, "mask": np.bool_, "terminated": np.bool_, "truncated": np.bool_, "version": np.uint64}
    dtypes |= {"length": np.int32, "timestep": np.int32}
    for field in rows:
        if field == "row":
            continue
        found = rows[field]
        shape = shapes.get(field, (steps,))
        assert (found.dtype, found.shape) == (dtypes.get(field, np.float32), (len(expected), *shape)), field
        if field != "version":
            wanted = np.array([item[field] for item in expected]).reshape(found.shape)
            assert np.array_equal(found, wanted.astype(found.dtype)), field


@st.composite
def windows(draw):
    length = draw(st.integers(1, 9))
    stack = draw(st.integers(1, 4))
    pad = draw(st.sampled_from(["tail", "head"]))
    n = draw(st.integers(1, length))
    common = {"length": length, "stack": stack, "pad": pad, "n": n, "gamma": 0.97}
    if draw(st.integers(0, 3)) == 0:
        return Window(kind="episode", **common)
    return Window(
        kind="sequence",
        stride=draw(st.integers(1, 12)),
        start=draw(st.sampled_from([0, 0, 1, 2, 5])),
        end=draw(st.sampled_from(["pad", "drop", "shift"])),
        burn_in=draw(st.integers(0, length - 1)),
        **common,
    )


@settings(
    max_examples=150,
    deadline=None,
    derandomize=os.environ.get("CI", "").lower() in ("1", "true"),  # other examples by hand
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
@given(windows(), st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_any_window_of_any_episode_is_that_of_the_model(window, seed, count):
    """Staged for a priority and drawn; n-step returns against those of a table of n-step items of the same steps."""
    rng = np.random.default_rng(seed)
    beside = f'[table.n]\nstore = "s"\ncapacity = 3000\nsampler = "fifo"\nwindow = {{n = {window.n}, gamma = 0.97}}\n'
    played = random_episodes(rng, count, 3 * window.length)
    expected = [item for episode in played for item in sequences_of(episode, window)]
    pieces = [(episode, *piece) for episode in played for piece in pieces_of(len(episode), window)]
    staged = []

    def collect(fields):
        staged.append({name: np.array(values) for name, values in fields.items()})
        staged[-1]["returns"] = netreplay.nstep_returns(fields, window.n, window.gamma)
        return np.ones(len(fields["row"]))

    with netreplay.connect("local:", spec=Spec.from_toml(toml_of(window, more=beside))) as replay:
        with replay.actor("s") as actor:
            for episode in played:
                play(actor, episode, {"t": collect, "n": 1.0})
            keys = actor.flush()
            dropped = actor.counters().truncated_dropped
        transitions = [item for episode in played for item in items_of(episode, 1, window.n, 0.97)]
        assert len(keys) == len(expected) + len(transitions)
        left_out = window.end == "drop" and sum(
            len(pieces_of(len(episode), window)) < len(pieces_of(len(episode), pad_of(window))) for episode in played
        )
        assert dropped == left_out
        if not expected:
            assert replay.table("t").info().size == 0
            return
        together = {name: np.concatenate([part[name] for part in staged]) for name in staged[0] if name != "returns"}
        compare(together, expected, window)
        with replay.learner("t", batch_size=len(expected), timeout=10) as learner:
            batch = learner.sample()
        assert set(batch.keys.tolist()) < set(keys.tolist()) or len(transitions) == 0
        compare(batch, expected, window)
        assert (batch.burn_in, batch.window) == (window.burn_in, window)

        returns = netreplay.nstep_returns(batch)
        for row, (episode, first, real) in enumerate(pieces):
            lead = 0 if window.pad == "tail" else window.length - real
            wanted = returns_of(episode, first, real, window.n, 0.97)
            for place in range(window.length):
                found = tuple(float(array[row, place]) for array in returns)
                inside = 0 <= place - lead < real
                assert found == (wanted[place - lead] if inside else (0.0, 0.0, 0.0))
        for field in range(3):
            assert np.array_equal(np.concatenate([part["returns"][field] for part in staged]), returns[field])

        # What the actor's C reckoned for n-step items, to the last bit, wherever the sequence holds all of their steps.
        if transitions:
            with replay.learner("n", batch_size=len(transitions), timeout=10) as learner:
                steps = learner.sample()
            place_of = {int(action): i for i, action in enumerate(steps["action"])}
            rows, places = np.nonzero(returns.length == window.n)
            same = [place_of[int(batch["action"][r, p])] for r, p in zip(rows, places, strict=True)]
            assert np.array_equal(returns.reward[rows, places].view(np.uint32), steps["reward"][same].view(np.uint32))
            assert np.array_equal(returns.discount[rows, places], steps["discount"][same])


def pad_of(window: Window) -> Window:
    return Window(kind="sequence", length=window.length, stride=window.stride, start=window.start)


SHAPES = [
    Window(kind="sequence", length=8, stride=4, burn_in=4, n=3, gamma=0.9),
    Window(kind="sequence", length=6, stride=6, stack=4, pad="head", end="shift"),
    Window(kind="sequence", length=5, stride=7, start=2, stack=2, end="drop"),
    Window(kind="episode", length=12, stack=3),
]


@pytest.mark.parametrize("window", SHAPES, ids=lambda w: f"{w.kind}-{w.length}-{w.advance}-{w.end}")
def test_what_is_drawn_is_what_was_played(open_replay, rng, window):
    replay = open_replay(toml_of(window))
    played = random_episodes(rng, 40, 3 * window.length)
    expected = [item for episode in played for item in sequences_of(episode, window)]
    with replay.actor("s") as actor:
        for episode in played:
            play(actor, episode)
        keys = actor.flush()
    with replay.learner("t", batch_size=len(expected), timeout=10) as learner:
        batch = learner.sample()
    assert batch.keys.tolist() == keys.tolist()
    compare(batch, expected, window)


def test_frames_cross_the_wire_once_and_reach_tensors_without_a_copy(open_replay, rng):
    """Rows of some 600 kB, so that steps leave from the slab where the transport can do that."""
    torch = pytest.importorskip("torch")
    frame = '{dtype = "uint8", shape = [84, 84]}'
    toml = toml_of(Window(kind="sequence", length=80, stride=40, stack=4), capacity=20).replace(STEP, frame)
    replay = open_replay(toml)
    frames = rng.integers(0, 256, (121, 84, 84), np.uint8)
    with replay.actor("s") as actor, replay.learner("t", batch_size=2, as_torch=True, timeout=20) as learner:
        for t in range(120):
            actor.append(obs=frames[t], action=t, reward=t, terminated=t == 119, truncated=False)
        actor.end(obs=frames[120])
        actor.flush()
        batch = learner.sample()
    obs, following = batch["obs"], batch["next_obs"]
    assert (tuple(obs.shape), obs.dtype) == ((2, 80, 4, 84, 84), torch.uint8)
    assert obs.stride()[1:3] == (84 * 84, 84 * 84)
    assert following.data_ptr() - obs.data_ptr() == 84 * 84
    assert obs.untyped_storage().nbytes() <= 2 * (84 * 84 * 84 + 80 * 20 + 100)
    for row, first in enumerate((0, 40)):
        for t in range(80):
            for s in range(4):
                assert np.array_equal(obs[row, t, s].numpy(), frames[max(first + t - 3 + s, 0)])
                assert np.array_equal(following[row, t, s].numpy(), frames[max(first + t - 2 + s, 0)])


def test_only_the_columns_asked_for_are_shown(open_replay, rng):
    window = Window(kind="sequence", length=4, columns=("reward", "truncated", "action"))
    more = '[table.n]\nstore = "s"\ncapacity = 100\nsampler = "fifo"\nwindow = {n = 2, columns = ["action"]}\n'
    replay = open_replay(toml_of(window, more=more))
    episode = random_episodes(rng, 1, 1)[0]
    with replay.actor("s") as actor, replay.learner("t", batch_size=1, timeout=10) as learner:
        play(actor, episode)
        actor.flush()
        batch = learner.sample()
        assert batch.fields == ("version", "length", "timestep", "action", "reward", "truncated", "mask")
        with pytest.raises(BadConfigError, match="no field 'terminated'"):
            netreplay.nstep_returns(batch)
        with replay.learner("n", batch_size=1, timeout=10) as transitions:
            assert transitions.sample().fields == ("version", "reward", "discount", "length", "action")


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_sequences_of_many_environments(open_replay, rng, mode):
    """The order of keys is row, anchor, table; finals come as the mode says."""
    envs, steps = 3, 60
    window = Window(kind="sequence", length=5, stride=3, stack=2, end="shift")
    more = '[table.n]\nstore = "s"\ncapacity = 3000\nsampler = "fifo"\nwindow = {n = 2, gamma = 0.9}\n'
    replay = open_replay(toml_of(window, more=more))
    done = rng.choice([0, 0, 0, 0, 0, 0, 1, 2], (steps, envs))
    numbers = np.arange(steps * envs, dtype=np.float32).reshape(steps, envs)
    made = []  # the episodes' observations, the final ones apart
    open_ = [[] for _ in range(envs)]
    skip = [False] * envs
    with replay.actor("s", num_envs=envs, autoreset=mode) as actor:
        for t in range(steps):
            final = None
            for env in range(envs):
                if skip[env]:
                    skip[env] = False
                    made.append((open_[env], float(numbers[t, env])))
                    open_[env] = []
                    continue
                open_[env].append(float(numbers[t, env]))
                if done[t, env]:
                    if mode == "next_step":
                        skip[env] = True
                    else:
                        made.append((open_[env], float(numbers[t, env]) + 0.5))
                        open_[env] = []
            if mode == "same_step":
                final = [numbers[t, env : env + 1] + 0.5 if done[t, env] else None for env in range(envs)]
            actor.append(
                obs=numbers[t][:, None],
                action=numbers[t].astype(np.int64),
                reward=numbers[t],
                terminated=done[t] == 1,
                truncated=done[t] == 2,
                final=final,
            )
        keys = actor.flush()
    expected = {}
    for observations, last in made:
        episode = Episode([*observations, last], [int(o) for o in observations], observations, True)
        for item in sequences_of(episode, window):
            expected[item["action"][0], item["length"]] = item
    with replay.learner("t", batch_size=replay.table("t").info().size, timeout=10) as learner:
        batch = learner.sample()
    place = {int(key): i for i, key in enumerate(keys)}
    order = [place[int(key)] for key in batch.keys]
    assert order == sorted(order)
    found = {}
    for row in range(len(batch)):
        found[int(batch["action"][row, 0]), int(batch["length"][row])] = row
    assert set(expected) <= set(found)  # episodes that have not ended made full sequences too
    for name, item in expected.items():
        for field in ("obs", "next_obs", "action", "reward", "mask", "timestep"):
            wanted = np.array(item[field]).reshape(batch[field][found[name]].shape)
            assert np.array_equal(batch[field][found[name]], wanted), field


def test_a_stream_goes_on_after_a_restart_within_a_sequence(start_server, resources, rng):
    """The client sends the steps again that the next sequence begins with."""
    window = Window(kind="sequence", length=50, stride=25, stack=2)
    server = start_server(toml_of(window))
    replay = resources.enter_context(netreplay.connect(server.url, auth="off", timeout=PATIENCE))
    episode = random_episodes(rng, 1, 1)[0]
    numbers = [float(i) for i in range(121)]
    episode = Episode(numbers, list(range(120)), numbers[:-1], True)
    with replay.actor("s") as actor:
        for t in range(60):
            actor.append(obs=[numbers[t]], action=t, reward=float(t), terminated=False, truncated=False)
        assert len(actor.flush()) == 1
        server.kill()
        server.restart()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataLossWarning)
            for t in range(60, 120):
                actor.append(obs=[numbers[t]], action=t, reward=float(t), terminated=t == 119, truncated=False)
            actor.end(obs=[numbers[120]])
            kept = len(actor.flush())
        assert sum(loss.items for loss in replay.losses()) == 1
    expected = sequences_of(episode, window)
    assert kept == len(expected) - 1
    with replay.learner("t", batch_size=kept, timeout=PATIENCE) as learner:
        compare(learner.sample(), expected[1:], window)


def test_episodes_of_one_step_and_of_none_after_the_start(open_replay):
    """The least that can be."""
    replay = open_replay(toml_of(Window(kind="sequence", length=3, start=1)))
    with replay.actor("s") as actor:
        play(actor, Episode([0.0, 1.0], [0], [1.0], True))
        assert len(actor.flush()) == 0
        play(actor, Episode([2.0, 3.0, 4.0], [2, 3], [1.0, 2.0], False))
        assert len(actor.flush()) == 1
    with replay.learner("t", batch_size=1, timeout=10) as learner:
        batch = learner.sample()
        assert batch["action"].tolist() == [[3, 0, 0]]
        assert batch["truncated"].tolist() == [[True, False, False]]
        assert batch["next_obs"][0, :, 0].tolist() == [4.0, 4.0, 4.0]


def test_the_longest_window(open_replay):
    """4,095 steps, more than any datagram's worth of them is in flight."""
    window = Window(kind="episode", length=4095)
    replay = open_replay(toml_of(window, capacity=3))
    with replay.actor("s") as actor:
        numbers = [float(i) for i in range(5001)]
        play(actor, Episode(numbers, list(range(5000)), numbers[:-1], True))
        assert len(actor.flush()) == 2
    with replay.learner("t", batch_size=2, timeout=10) as learner:
        batch = learner.sample()
        assert batch["length"].tolist() == [4095, 905]
        assert np.array_equal(batch["action"][0], np.arange(4095))
        assert np.array_equal(batch["reward"][1], np.where(np.arange(4095) < 905, np.arange(4095) + 4095, 0))
        assert np.array_equal(batch["next_obs"][1, :, 0], np.minimum(np.arange(4095) + 4096, 5000))


def test_items_leave_in_turn_where_sequences_overlap(open_replay, rng):
    """A table far smaller than what is played: steps come free as the last sequence over them leaves."""
    window = Window(kind="sequence", length=8, stride=4)
    replay = open_replay(toml_of(window, capacity=20))
    played = random_episodes(rng, 60, 60)
    expected = [item for episode in played for item in sequences_of(episode, window)]
    with replay.actor("s") as actor:
        for episode in played:
            play(actor, episode)
        actor.flush()
    info = replay.table("t").info()
    assert info.size == 20
    assert info.evicted_steps == 0
    with replay.learner("t", batch_size=20, timeout=10) as learner:
        compare(learner.sample(), expected[-20:], window)


def test_draws_too_large_for_the_wire_are_refused_before_they_are_sent(start_server, resources):
    toml = toml_of(Window(kind="sequence", length=200), capacity=1, sampler="uniform")
    toml = toml.replace(STEP, '{dtype = "uint8", shape = [90000]}')
    toml = toml.replace("[table.t]", "steps = 500\nstreams = 1\n[table.t]\nleases = 1")
    server = start_server(toml)
    replay = resources.enter_context(netreplay.connect(server.url, auth="off", timeout=PATIENCE))
    with pytest.raises(BadCountError, match=r"makes draws of \d+ bytes") as caught:
        replay.learner("t", batch_size=256)
    assert caught.value.field == "batch_size"
