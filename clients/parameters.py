"""Parameters: named sets of tensors that a learner publishes and actors fetch. Source: docs/semantics.md 8."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from netreplay._binding import ffi, lib
from netreplay.clients.handle import Handle
from netreplay.clients.tensors import decode, encode
from netreplay.errors import BadLengthError, ColumnError, NoSetError

_WHATEVER = 2**64 - 1


def _version(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < _WHATEVER:
        raise ColumnError(f"{name}: {value!r} is no version", column=name, value=value)
    return int(value)


class Parameters:
    """One set; `replay.parameters` is "default", `replay.parameters["x"]` another."""

    def __init__(self, handle: Handle, name: str = "default") -> None:
        self._handle = handle
        self._index = handle.plan.set_index.get(name, -1)
        if self._index < 0:
            known = ", ".join(handle.plan.set_index)
            raise NoSetError(f"parameters {name!r}: the server has no such set; it has: {known}", value=name)
        self.name = name
        self.max_bytes = handle.plan.spec.parameters[name].max_bytes
        """of one publication, header included"""

    def __repr__(self) -> str:
        return f"<parameters {self.name!r} of {self._handle.address}>"

    def __getitem__(self, name: str) -> Parameters:
        return Parameters(self._handle, name)

    def __iter__(self) -> Iterator[str]:
        """The names of all sets."""
        return iter(self._handle.plan.set_index)

    def publish(self, tensors: Mapping[str, Any], expect: int | None = None, *, timeout: float | None = None) -> int:
        """Replaces the set's tensors (arrays or torch tensors by name); its new version.

        With `expect`, only when that is the present version (0: none yet), else ConflictError. BadLengthError above
        `max_bytes`. The client keeps a copy and publishes it again to a restarted server.
        """
        encoded = encode(tensors)
        if len(encoded) > self.max_bytes:
            raise BadLengthError(
                f"parameters {self.name!r}: {len(encoded)} bytes are above the set's max_bytes of {self.max_bytes}; "
                f"raise parameters.{self.name}.max_bytes in the server's config",
                value=len(encoded),
            )
        wanted = _WHATEVER if expect is None else _version("expect", expect)
        version = ffi.new("uint64_t *")
        source = ffi.from_buffer("char[]", encoded)
        self._handle.call(
            f"publish to {self.name!r}",
            lambda replay, wait, op: lib.nr_publish(
                replay, self._index, source, len(encoded), wanted, version, wait, op
            ),
            timeout,
            expect=expect,
        )
        return int(version[0])

    def fetch(
        self, newer_than: int = 0, *, as_torch: bool = False, timeout: float | None = None
    ) -> tuple[int, dict[str, Any]] | None:
        """(version, tensors by name) when the server's version is above newer_than, else None.

        Tensors are numpy arrays, or torch tensors with as_torch; they share one buffer and may be written. The version
        becomes the `version` of items that this connection's actors form from now on.
        """
        known = _version("newer_than", newer_than)
        fetched = ffi.new("struct nr_fetched *")
        self._handle.call(
            f"fetch of {self.name!r}",
            lambda replay, wait, op: lib.nr_fetch(replay, self._index, known, fetched, wait, op),
            timeout,
        )
        if fetched.data == ffi.NULL:
            return None
        version, length = int(fetched.version), int(fetched.length)
        # The arrays keep `data`, and `data` keeps what frees it.
        data = ffi.gc(fetched.data, lambda _: lib.nr_fetched_free(fetched))
        tensors = decode(memoryview(ffi.buffer(data, length)), as_torch)
        self._handle.version = version
        for actor in list(self._handle.actors):
            actor.set_version(version)
        return version, tensors
