"""Keys for languages whose numbers are float64. Source: docs/semantics.md 3."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def split_keys(keys: Any) -> NDArray[np.uint32]:
    """Keys int64 [n] as their upper and lower halves, uint32 [n, 2]: each fits a float64."""
    words = np.asarray(keys, np.int64).view(np.uint64)
    return np.stack([words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)


def join_keys(halves: Any) -> NDArray[np.int64]:
    """The keys int64 [n] of `split_keys`'s halves [n, 2]."""
    pairs = np.asarray(halves).astype(np.uint64)
    return ((pairs[..., 0] << np.uint64(32)) | pairs[..., 1]).view(np.int64)
