"""An experience-replay memory that lives in the network.

::

    replay = netreplay.connect("vhost:///tmp/replay.sock")  # or "udp://10.0.0.7:7447", auth="off"
    actor = replay.actor("pong")
    actor.append(frame=..., action=..., reward=..., terminated=..., truncated=...)
    learner = replay.learner("pong", batch_size=512, prefetch=4)
    for batch in learner:
        learner.update_priorities(batch.keys, ...)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netreplay import errors
from netreplay.errors import (
    BadConfigError,
    Closed,
    ColumnError,
    DataLossWarning,
    ItemsRefused,
    NetreplayError,
    SpecError,
    Timeout,
)
from netreplay.keys import join_keys, split_keys
from netreplay.spec import ColumnSpec, Limiter, ParameterSpec, Spec, StoreSpec, TableSpec, Window

if TYPE_CHECKING:
    from netreplay.clients.actor import Actor
    from netreplay.clients.batch import Batch
    from netreplay.clients.connect import connect
    from netreplay.clients.learner import Learner
    from netreplay.clients.limits import Limits
    from netreplay.clients.looking import Found, Histogram, Histograms
    from netreplay.clients.replay import Replay, TableInfo
    from netreplay.clients.sequences import nstep_returns, sequence_priority
    from netreplay.clients.updating import DeleteResult, UpdateResult

__version__: str

__all__ = [
    "connect",
    "Replay",
    "Actor",
    "Learner",
    "Batch",
    "UpdateResult",
    "DeleteResult",
    "TableInfo",
    "Limits",
    "Found",
    "Histogram",
    "Histograms",
    "Spec",
    "StoreSpec",
    "ColumnSpec",
    "TableSpec",
    "Window",
    "Limiter",
    "ParameterSpec",
    "nstep_returns",
    "sequence_priority",
    "split_keys",
    "join_keys",
    "errors",
    "NetreplayError",
    "Timeout",
    "Closed",
    "SpecError",
    "BadConfigError",
    "ColumnError",
    "ItemsRefused",
    "DataLossWarning",
    "__version__",
]

# Loaded when first asked for: what both sides share needs neither clients nor the C.
_LAZY = {
    "connect": "netreplay.clients.connect",
    "Replay": "netreplay.clients.replay",
    "TableInfo": "netreplay.clients.replay",
    "Found": "netreplay.clients.looking",
    "Histogram": "netreplay.clients.looking",
    "Histograms": "netreplay.clients.looking",
    "Actor": "netreplay.clients.actor",
    "Learner": "netreplay.clients.learner",
    "UpdateResult": "netreplay.clients.updating",
    "DeleteResult": "netreplay.clients.updating",
    "Limits": "netreplay.clients.limits",
    "Batch": "netreplay.clients.batch",
    "nstep_returns": "netreplay.clients.sequences",
    "sequence_priority": "netreplay.clients.sequences",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Read when asked for: importlib.metadata would double the cost of importing this package.
        from importlib.metadata import version

        return version("netreplay")
    if name in _LAZY:
        from importlib import import_module

        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
