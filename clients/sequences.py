"""What recurrent learners reckon from batches of sequences: n-step returns and the priority of a sequence.

Source: docs/semantics.md 2 (sequences); Kapturowski et al., Recurrent Experience Replay in Distributed RL (R2D2), 2019.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from netreplay.clients.arguments import is_number, shown, whole
from netreplay.clients.batch import Batch
from netreplay.errors import BadConfigError
from netreplay.spec import MAX_WINDOW


class Returns(NamedTuple):
    """Of each of the T steps of a batch of sequences; all zero where no real step is."""

    reward: Any
    """float32 [B, T]: sum of gamma^i r(t+i) over i < k"""
    discount: Any
    """float32 [B, T]: gamma^k, 0 when the episode terminated within the k steps"""
    length: Any
    """int32 [B, T]: k, the steps summed: n, or as many as the sequence still has. Bootstrap from next_obs[t + k - 1]"""


def nstep_returns(batch: Batch | Mapping[str, Any], n: int | None = None, gamma: float | None = None) -> Returns:
    """The n-step return of every step of sequences, as a table of n-step items would give it.

    k = min(n, real steps from t to the sequence's end): it is less than n at the sequence's end, whether or not the
    episode goes on there. Terminated within: discount 0. Truncated: gamma^k, and next_obs[t + k - 1] is the episode's
    last observation. The sum is reckoned in float64, i rising, and rounded once: the same bits as those of n-step
    items.

    `batch` is a Batch, whose window says n and gamma where they are None, or the fields that a `priority=` callable
    gets. Returns tensors for a batch of tensors, which share no memory with it.
    """
    if isinstance(batch, Batch):
        n = batch.window.n if n is None else n
        gamma = batch.window.gamma if gamma is None else gamma
        fields: Any = batch.numpy()
    else:
        fields = batch
    n = whole(n, "n", 1, MAX_WINDOW)
    if not is_number(gamma) or not 0.0 <= gamma <= 1.0:  # type: ignore[operator]
        raise BadConfigError(f"gamma: {shown(gamma)} is not a number between 0 and 1", field="gamma", value=gamma)
    for field in ("reward", "terminated", "mask"):
        if field not in fields:
            text = f"batch has no field {field!r} of steps: n-step returns are made of sequences that show it"
            raise BadConfigError(text, field=field, value=None)
    found = _returns(fields["reward"], fields["terminated"], fields["mask"], n, float(gamma))  # type: ignore[arg-type]
    if isinstance(batch, Batch) and batch.as_torch:
        from netreplay.dtypes import as_tensor

        return Returns(*(as_tensor(array, False) for array in found))
    return found


def _returns(reward: NDArray[Any], terminated: NDArray[Any], mask: NDArray[Any], n: int, gamma: float) -> Returns:
    steps = mask.shape[1]
    ahead = np.cumsum(mask[:, ::-1], axis=1, dtype=np.int32)[:, ::-1]  # real steps from each on
    length = np.where(mask, np.minimum(ahead, n), 0).astype(np.int32)
    total = np.zeros(mask.shape, np.float64)
    for i in range(min(n, steps)):
        # What lies behind the end is zero, and changes no sum.
        total[:, : steps - i] += math.pow(gamma, i) * reward[:, i:].astype(np.float64)
    powers = np.array([math.pow(gamma, i) for i in range(min(n, steps) + 1)], np.float64).astype(np.float32)
    over = np.any(terminated, axis=1, keepdims=True) & (length == ahead)
    discount = np.where(mask & ~over, powers[length], np.float32(0))
    return Returns(np.where(mask, total, 0.0).astype(np.float32), discount, length)


def sequence_priority(td_errors: Any, mask: Any = None, eta: float = 0.9) -> Any:
    """eta x max + (1 - eta) x mean of |td_errors| [B, T] over the real steps, [B]; numpy or torch, as given.

    `mask` [B, T] says which steps are real (batch["mask"], without burn-in if errors have none there); None: all. A
    sequence without real step gets 0. A NaN in a real step gives NaN, which update_priorities refuses for that item.
    """
    if not is_number(eta) or not 0.0 <= eta <= 1.0:
        raise BadConfigError(f"eta: {shown(eta)} is not a number between 0 and 1", field="eta", value=eta)
    shape = tuple(np.shape(td_errors))
    if len(shape) != 2 or shape[1] == 0:
        raise BadConfigError(f"td_errors: shape {shape} is not [B, T]", field="td_errors", value=shape)
    if mask is not None and tuple(mask.shape) != shape:
        raise BadConfigError(
            f"mask: shape {tuple(mask.shape)} is not {shape}, that of td_errors", field="mask", value=tuple(mask.shape)
        )
    if type(td_errors).__module__.partition(".")[0] == "torch":
        return _torch_priority(td_errors, mask, eta)
    errors = np.abs(np.asarray(td_errors, np.float64))
    count: Any = shape[1]
    if mask is not None:
        real = np.asarray(mask, np.bool_)
        errors = np.where(real, errors, 0.0)
        count = np.maximum(real.sum(axis=1), 1)
    return eta * errors.max(axis=1) + (1.0 - eta) * (errors.sum(axis=1) / count)


def _torch_priority(td_errors: Any, mask: Any, eta: float) -> Any:
    import torch

    errors = td_errors.detach().abs()
    count: Any = errors.shape[1]
    if mask is not None:
        real = torch.as_tensor(mask, device=errors.device).bool()
        errors = torch.where(real, errors, torch.zeros_like(errors))
        count = real.sum(dim=1).clamp(min=1)
    return eta * errors.amax(dim=1) + (1.0 - eta) * (errors.sum(dim=1) / count)
