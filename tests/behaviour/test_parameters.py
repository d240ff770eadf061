"""Parameters: what is published is what is fetched, once, by version. Semantics 8."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from specs import simple

from netreplay.errors import BadLengthError, ColumnError, ConflictError

SETS = '[parameters.default]\nmax_bytes = "2 MiB"\n[parameters.small]\nmax_bytes = 1000\n'


def test_nothing_is_there_at_first(open_replay):
    assert open_replay(simple()).parameters.fetch() is None


@pytest.mark.parametrize("size", [0, 1, 1000, 400_000])
def test_tensors_come_back_and_versions_grow(open_replay, rng, size):
    replay = open_replay(simple(more=SETS))
    versions = [0]
    for _ in range(3):
        tensors = {"weight": rng.standard_normal(size).astype(np.float32), "step": np.array(7, np.int64)}
        versions.append(replay.parameters.publish(tensors))
        assert versions[-1] > versions[-2]
        version, fetched = replay.parameters.fetch(versions[-2])
        assert version == versions[-1]
        assert list(fetched) == ["weight", "step"]
        assert np.array_equal(fetched["weight"], tensors["weight"])
        assert fetched["step"] == 7
        assert replay.parameters.fetch(version) is None


def test_a_state_dict_goes_through(open_replay):
    replay = open_replay(simple())
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)).to(torch.bfloat16)
    replay.parameters.publish(model.state_dict())
    _, fetched = replay.parameters.fetch(as_torch=True)
    other = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)).to(torch.bfloat16)
    other.load_state_dict(fetched)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_fetched_tensors_outlive_the_next_fetch_and_the_connection(open_replay):
    replay = open_replay(simple())
    replay.parameters.publish({"w": np.ones(1000)})
    _, first = replay.parameters.fetch()
    replay.parameters.publish({"w": np.zeros(1000)})
    replay.parameters.fetch()
    replay.close()
    assert (first["w"] == 1).all()
    first["w"][0] = 5.0


def test_expect_is_compared(open_replay):
    replay = open_replay(simple())
    first = replay.parameters.publish({"w": np.zeros(1)}, expect=0)
    with pytest.raises(ConflictError):
        replay.parameters.publish({"w": np.ones(1)}, expect=0)
    second = replay.parameters.publish({"w": np.ones(1)}, expect=first)
    assert replay.parameters.fetch()[0] == second


def test_sets_are_apart_and_have_their_own_cap(open_replay):
    replay = open_replay(simple(more=SETS))
    assert list(replay.parameters) == ["default", "small"]
    version = replay.parameters["small"].publish({"x": np.zeros(10)})
    assert replay.parameters.fetch() is None
    assert replay.parameters["small"].fetch()[0] == version
    with pytest.raises(
        BadLengthError, match=r"parameters 'small': \d+ bytes are above .* 1000; raise parameters.small.max_bytes"
    ):
        replay.parameters["small"].publish({"x": np.zeros(1000)})


@pytest.mark.parametrize("wrong", [-1, 2**64 - 1, True, 1.5, "x"])
def test_what_is_no_version_is_refused(open_replay, wrong):
    replay = open_replay(simple())
    with pytest.raises(ColumnError, match="expect: "):
        replay.parameters.publish({}, expect=wrong)
    with pytest.raises(ColumnError, match="newer_than: "):
        replay.parameters.fetch(wrong)


def test_what_cannot_be_published_is_named(open_replay):
    with pytest.raises(ColumnError, match="tensor 'w' is an object"):
        open_replay(simple()).parameters.publish({"w": object()})
