"""Batch buffers. Large ones are used again once the last array over them is gone: their pages are there."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netreplay._binding import ffi

POOLED_BYTES = 256 * 1024
"""below this a fresh buffer costs less than taking one back"""
SMALL_BYTES = 32 * 1024
"""below this a bytearray, though zeroed, is made faster than an array"""
KEPT = 4
"""free buffers that wait for use, at most"""


class Pool:
    """Buffers of one size."""

    __slots__ = ("__weakref__", "free", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.free: list[NDArray[np.uint8]] = []

    def take(self) -> tuple[Any, Any]:
        """A buffer that numpy can look into, and the pointer to it."""
        if self.size < POOLED_BYTES:
            plain = bytearray(self.size) if self.size < SMALL_BYTES else np.empty(self.size, np.uint8)
            return plain, ffi.from_buffer(plain)
        try:
            memory = self.free.pop()
        except IndexError:
            memory = np.empty(self.size, np.uint8)
        pool = weakref.ref(self)

        def give_back(_: Any) -> None:
            owner = pool()
            if owner is not None and len(owner.free) < KEPT:
                owner.free.append(memory)

        # Every array over the buffer has the cdata at the end of its base chain, so this runs when the last one is
        # gone.
        pointer = ffi.gc(ffi.from_buffer(memory), give_back)
        return ffi.buffer(pointer, self.size), pointer
