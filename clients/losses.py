"""What a restarted server lost, said aloud. Source: docs/semantics.md 7."""

from __future__ import annotations

import logging
import warnings
from typing import NamedTuple

from netreplay._binding import ffi, lib
from netreplay.clients.handle import Handle
from netreplay.errors import DataLossWarning

logger = logging.getLogger("netreplay")
_AT_ONCE = 64


class Loss(NamedTuple):
    """Items of one stream that an earlier server acknowledged and the present one does not hold."""

    stream: str
    """the stream's id, 32 hexadecimal digits"""
    first_item: int
    """number of the first lost item within its stream"""
    items: int
    """how many"""
    incarnation: int
    """of the server that is there now"""


def take_losses(handle: Handle) -> list[Loss]:
    """Those not taken before."""
    if handle.ptr is None:
        return []
    found: list[Loss] = []
    buffer = ffi.new("struct nr_loss[]", _AT_ONCE)
    with handle as replay:
        while count := lib.nr_replay_losses(replay, _AT_ONCE, buffer):
            for loss in buffer[0 : min(count, _AT_ONCE)]:
                stream = bytes(ffi.buffer(loss.stream)).hex()
                found.append(Loss(stream, int(loss.first_item), int(loss.items), int(loss.incarnation)))
            if count < _AT_ONCE:
                break
    return found


def announce(handle: Handle, stacklevel: int = 2) -> None:
    """Names new losses by a DataLossWarning and in the log, and keeps them for `replay.losses()`."""
    if handle.dead is not None:
        return
    losses = take_losses(handle)
    if not losses:
        return
    handle.losses.extend(losses)
    items = sum(loss.items for loss in losses)
    named = ", ".join(
        f"{loss.stream[:8]} items {loss.first_item}..{loss.first_item + loss.items - 1}" for loss in losses[:8]
    )
    more = f" and {len(losses) - 8} more" if len(losses) > 8 else ""
    text = (
        f"{handle.address} was restarted and no longer holds {items} acknowledged items "
        f"of {len(losses)} streams: {named}{more}"
    )
    logger.warning("%s", text)
    warnings.warn(text, DataLossWarning, stacklevel=stacklevel)
