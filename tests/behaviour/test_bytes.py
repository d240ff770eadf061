"""Bytes and types: what goes in comes out, and what does not fit is named. Cases 20 and 21."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from specs import simple

import netreplay
from netreplay.errors import ColumnError, NoMemoryError

DTYPES = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]
DTYPES += ["complex64", "complex128", "datetime64[s]", "timedelta64[ns]"]
SHAPES = [(), (1,), (5,), (3, 4), (0,), (2, 0, 3), (2, 3, 4)]


def random_values(rng, dtype, shape):
    raw = rng.integers(0, 256, (*shape, 16), dtype=np.uint8)
    if dtype == "bool":
        return (raw[..., 0] & 1).astype(bool)
    size = np.dtype(dtype).itemsize
    return raw[..., :size].copy().view(dtype).reshape(shape)


def same_bytes(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_comes_back_bit_for_bit(open_replay, rng, dtype):
    columns = "\n".join(f'observation.x{i} = {{dtype = "{dtype}", shape = {list(s)}}}' for i, s in enumerate(SHAPES))
    toml = (
        f'[store.s]\n{columns}\naction.a = {{dtype = "{dtype}", shape = [3]}}\n[table.t]\nstore = "s"\ncapacity = 10\n'
    )
    replay = open_replay(toml)
    with replay.actor("s") as actor, replay.learner("t", batch_size=4, timeout=10) as learner:
        rows = [{f"x{i}": random_values(rng, dtype, s) for i, s in enumerate(SHAPES)} for _ in range(2)]
        action = random_values(rng, dtype, (3,))
        actor.append(**rows[0], a=action, reward=1.0, terminated=True, truncated=False)
        actor.end(**rows[1])
        actor.flush()
        batch = learner.sample()
        for i, shape in enumerate(SHAPES):
            assert batch[f"obs.x{i}"].shape == (4, *shape)
            assert same_bytes(batch[f"obs.x{i}"][3], rows[0][f"x{i}"])
            assert same_bytes(batch[f"next_obs.x{i}"][3], rows[1][f"x{i}"])
        assert same_bytes(batch["action"][0], action)
        if "64[" not in dtype:
            tensors = batch.torch()
            assert tensors["obs.x3"].numpy().tobytes() == batch["obs.x3"].tobytes()


def test_bfloat16_is_kept(open_replay):
    replay = open_replay(simple(observation='{dtype = "bfloat16", shape = [3]}', stack=2))
    values = [torch.tensor([1.5, -2.0, 3e38], dtype=torch.bfloat16) * (i + 1) for i in range(3)]
    with replay.actor("s") as actor, replay.learner("t", batch_size=4, timeout=10, as_torch=True) as learner:
        for value in values:
            actor.append(obs=value, action=0, reward=0.0, terminated=False, truncated=False)
        actor.flush()
        batch = learner.sample()
        assert batch["obs"].dtype == torch.bfloat16
        assert batch["obs"].shape == (4, 2, 3)
        assert all(torch.equal(row[1], values[0]) or torch.equal(row[1], values[1]) for row in batch["obs"])


@pytest.mark.parametrize("size", [1, 64, 1500, 9000, 70_000])
def test_steps_of_any_size_come_back(open_replay, rng, size):
    toml = simple(capacity=20, observation=f'{{dtype = "uint8", shape = [{size}]}}', stack=2, sampler="uniform")
    replay = open_replay(toml)
    frames = rng.integers(0, 256, (10, size), dtype=np.uint8)
    with replay.actor("s") as actor, replay.learner("t", batch_size=40, timeout=10) as learner:
        for i, frame in enumerate(frames):
            actor.append(obs=frame, action=i, reward=0.0, terminated=False, truncated=False)
        assert len(actor.flush()) == 9
        batch = learner.sample()
        for obs, next_obs, action in zip(batch["obs"], batch["next_obs"], batch["action"], strict=True):
            before = frames[max(0, action - 1)]
            assert np.array_equal(obs, [before, frames[action]])
            assert np.array_equal(next_obs, [frames[action], frames[action + 1]])


def test_buffers_are_the_callers_again_when_append_returns(open_replay):
    replay = open_replay(simple(observation='{dtype = "uint8", shape = [20000]}', sampler="uniform"))
    frame = np.zeros(20_000, np.uint8)
    with replay.actor("s") as actor, replay.learner("t", batch_size=40, timeout=10) as learner:
        for i in range(5):
            frame[:] = i
            actor.append(obs=frame, action=i, reward=0.0, terminated=False, truncated=False)
            frame[:] = 99
        actor.flush()
        batch = learner.sample()
        assert (batch["obs"] == batch["action"][:, None]).all()


BAD_ROWS = [
    ({"obs": np.zeros(5)}, "obs", None, r"has shape \[5\], and \[4\] is wanted"),
    ({"obs": np.zeros((1, 4))}, "obs", None, r"has shape \[1, 4\]"),
    ({"obs": ["a"] * 4}, "obs", (0,), r"'a' is a string"),
    ({"obs": [0, 0, None, 0]}, "obs", (0,), "is an object"),
    ({"obs": [0.0, 1e300, 0.0, 0.0]}, "obs", (1,), r"1e\+300 is beyond float32"),
    ({"obs": np.zeros(4, np.complex64)}, "obs", (0,), "complex64, which does not fit float32"),
    ({"action": 1.5}, "action", None, "1.5 is float64, which does not fit int64"),
    ({"action": 2**64}, "action", None, "is an object|is outside int64"),
    ({"action": "left"}, "action", None, "'left' is a string"),
    ({"action": [1]}, "action", None, r"has shape \[1\], and \[\] is wanted"),
    ({"reward": "much"}, "reward", None, "'much' is a string"),
    ({"reward": 1e39}, "reward", None, r"1e\+39 is beyond float32"),
    ({"reward": np.zeros(2)}, "reward", None, r"has shape \[2\]"),
    ({"terminated": 2}, "terminated", None, "2 is int64, which does not fit bool"),
    ({"truncated": 0.0}, "truncated", None, "0.0 is float64, which does not fit bool"),
    ({"truncated": None}, "truncated", None, "is an object"),
]


@pytest.mark.parametrize(
    ("change", "column", "index", "complaint"), BAD_ROWS, ids=[f"{next(iter(b[0].items()))}"[:30] for b in BAD_ROWS]
)
def test_a_bad_value_is_refused_before_anything_is_taken(open_replay, change, column, index, complaint):
    replay = open_replay(simple())
    row = {"obs": np.zeros(4), "action": 0, "reward": 0.0, "terminated": False, "truncated": False}
    with replay.actor("s") as actor:
        actor.append(**row)
        with pytest.raises(ColumnError, match=complaint) as caught:
            actor.append(**{**row, **change})
        assert f"store 's', column '{column}'" in str(caught.value)
        assert (caught.value.store, caught.value.column) == ("s", column)
        assert index is None or caught.value.index == index
        assert actor.counters().steps == 1
        actor.append(**row)
        assert len(actor.flush()) == 1


def test_missing_and_unknown_columns_are_named(open_replay):
    replay = open_replay(simple())
    result = {"reward": 0.0, "terminated": False, "truncated": False}
    with replay.actor("s") as actor:
        with pytest.raises(ColumnError, match="column 'action': is missing; wanted are: obs, action"):
            actor.append(obs=np.zeros(4), **result)
        with pytest.raises(ColumnError, match="column 'act': is no column here; wanted are: obs, action"):
            actor.append(obs=np.zeros(4), action=0, act=0, **result)
        with pytest.raises(ColumnError, match="column 'action': is missing"):
            actor.append(obs=np.zeros(4), act=0, **result)
        with pytest.raises(TypeError, match="reward"):
            actor.append(obs=np.zeros(4), action=0, terminated=False, truncated=False)
        actor.append(obs=np.zeros(4), action=0, **{**result, "terminated": True})
        with pytest.raises(ColumnError, match="column 'action': is no column here; wanted are: obs"):
            actor.end(obs=np.zeros(4), action=0)
        with pytest.raises(ColumnError, match="column 'obs': is missing"):
            actor.end()
        assert actor.counters().steps == 1


def test_numbers_of_every_kind_are_taken(open_replay):
    replay = open_replay(simple(sampler="uniform"))
    numbers = [7, np.int8(7), np.uint64(7), np.array(7), torch.tensor(7), np.array(7, ">i2"), True + 6]
    with replay.actor("s") as actor, replay.learner("t", batch_size=64, timeout=10) as learner:
        for number in numbers:
            actor.append(
                obs=[number] * 4, action=number, reward=number, terminated=np.bool_(False), truncated=np.array(False)
            )
        actor.flush()
        batch = learner.sample()
        assert (batch["action"] == 7).all()
        assert (batch["obs"] == 7).all()
        assert (batch["reward"] == 7).all()


@pytest.mark.parametrize("batch_size", [4, 4000])
def test_a_batch_owns_its_buffer_until_the_last_array_is_dropped(open_replay, batch_size):
    """Small and pooled buffers alike: arrays of earlier batches keep their values while others are drawn."""
    replay = open_replay(simple(sampler="uniform", capacity=100))
    with replay.actor("s") as actor, replay.learner("t", batch_size=batch_size, timeout=10, prefetch=1) as learner:
        for i in range(60):
            actor.append(obs=np.full(4, i), action=i, reward=0.0, terminated=False, truncated=False)
        actor.flush()
        held, copies = [], []
        for i in range(12):
            batch = learner.sample()
            array = batch["obs"][1:] if i % 2 else batch.torch()["obs"]
            held.append(array)
            copies.append(np.asarray(array).copy())
            del batch
            gc.collect()
        for array, copy in zip(held, copies, strict=True):
            assert np.array_equal(np.asarray(array), copy)


def test_torch_shares_the_memory_of_the_batch(open_replay):
    replay = open_replay(simple(stack=2))
    with replay.actor("s") as actor, replay.learner("t", batch_size=8, timeout=10) as learner:
        for i in range(6):
            actor.append(obs=np.full(4, i), action=i, reward=0.0, terminated=False, truncated=False)
        actor.flush()
        batch = learner.sample()
        tensors = batch.torch()
        for field in batch.fields:
            assert np.shares_memory(tensors[field].numpy(), batch[field])
        tensors["reward"][0] = 42.0
        assert batch["reward"][0] == 42.0
        assert tensors.weights(1.0).dtype == torch.float32
        assert tensors.keys.dtype == torch.int64
        assert tensors.probabilities.dtype == torch.float64
        assert isinstance(tensors.numpy()["obs"], np.ndarray)


@pytest.mark.parametrize("capacity", [10**9, 4 * 10**9])
def test_a_huge_configuration_is_refused_before_allocating(capacity):
    spec = netreplay.Spec.from_toml(simple(capacity=capacity, observation='{dtype = "uint8", shape = [84, 84]}'))
    with pytest.raises((NoMemoryError, netreplay.SpecError), match=r"7072 B = |is above 4294967294"):
        netreplay.connect("local:", spec=spec)
