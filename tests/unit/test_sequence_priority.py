"""eta x max + (1 - eta) x mean, over numpy and torch."""

from __future__ import annotations

import numpy as np
import pytest

from netreplay import nstep_returns, sequence_priority
from netreplay.errors import BadConfigError, BadCountError


def plain(errors, mask, eta):
    found = []
    for row, real in zip(errors, mask, strict=True):
        values = [abs(float(e)) for e, r in zip(row, real, strict=True) if r]
        found.append(eta * max(values) + (1 - eta) * sum(values) / len(values) if values else 0.0)
    return found


@pytest.mark.parametrize("kind", ["float64", "float32", "torch"])
@pytest.mark.parametrize("eta", [0.9, 0, 1, np.float32(0.5)])
def test_it_is_that_of_the_paper(rng, kind, eta):
    errors, mask = rng.normal(size=(20, 12)), rng.random((20, 12)) < 0.6
    mask[3] = False
    given = errors.astype("float64" if kind == "torch" else kind)
    if kind == "torch":
        torch = pytest.importorskip("torch")
        masked = sequence_priority(torch.from_numpy(given), torch.from_numpy(mask), eta)
        whole = sequence_priority(torch.from_numpy(given).requires_grad_(), eta=eta)
        assert not whole.requires_grad
    else:
        masked, whole = sequence_priority(given, mask, eta), sequence_priority(given, eta=eta)
    assert np.allclose(masked, plain(given, mask, float(eta)), rtol=1e-6)
    assert np.allclose(whole, plain(given, np.ones_like(mask), float(eta)), rtol=1e-6)
    assert masked[3] == 0


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_what_lies_in_the_padding_does_not_count(kind):
    errors, mask = np.array([[1.0, np.nan], [np.nan, 2.0]]), np.array([[True, False], [True, True]])
    if kind == "torch":
        torch = pytest.importorskip("torch")
        errors, mask = torch.from_numpy(errors), torch.from_numpy(mask)
    found = sequence_priority(errors, mask)
    assert found[0] == 1.0
    assert np.isnan(float(found[1]))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"td_errors": np.ones(3)}, "td_errors"),
        ({"td_errors": np.ones((3, 0))}, "td_errors"),
        ({"td_errors": np.ones((3, 4)), "mask": np.ones((3, 5), bool)}, "mask"),
        ({"td_errors": np.ones((3, 4)), "eta": 1.1}, "eta"),
        ({"td_errors": np.ones((3, 4)), "eta": float("nan")}, "eta"),
        ({"td_errors": np.ones((3, 4)), "eta": True}, "eta"),
        ({"td_errors": np.ones((3, 4)), "eta": "0.9"}, "eta"),
    ],
)
def test_what_is_wrong_is_named(arguments, field):
    with pytest.raises(BadConfigError, match=f"^{field}: ") as caught:
        sequence_priority(**arguments)
    assert caught.value.field == field


def test_returns_refuse_what_they_cannot_be_of():
    steps = {"reward": np.ones((2, 3), np.float32), "terminated": np.zeros((2, 3), bool), "mask": np.ones((2, 3), bool)}
    assert nstep_returns(steps, 2, 0.5).reward.tolist() == [[1.5, 1.5, 1.0]] * 2
    assert nstep_returns(steps, 9, 0.5).discount.tolist() == [[0.125, 0.25, 0.5]] * 2
    with pytest.raises(BadCountError, match=r"^n: 0 is"):
        nstep_returns(steps, 0, 0.5)
    with pytest.raises(BadConfigError, match=r"^gamma: 2 is"):
        nstep_returns(steps, 1, 2)
    with pytest.raises(BadConfigError, match="no field 'mask'"):
        nstep_returns({"reward": steps["reward"], "terminated": steps["terminated"]}, 1, 0.5)
