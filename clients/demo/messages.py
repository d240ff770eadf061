"""What actors and learner tell the supervisor: JSON lines. Every number counts since the message before."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from netreplay.clients.demo.latency import Histogram
from netreplay.clients.losses import Loss


@dataclass(frozen=True)
class ActorProgress:
    """What an actor process has done."""

    steps: int
    """environment steps, over all of its environments"""
    returns: list[float]
    """undiscounted returns of its (exploring) episodes that ended"""
    reconnects: int
    """sessions that its client had to open anew, since its start"""
    latencies: dict[str, Histogram] = field(default_factory=dict)
    """by call: act, step, append, flush, fetch"""
    losses: list[Loss] = field(default_factory=list)
    """acknowledged items that a restarted server no longer holds, as the client named them"""


@dataclass(frozen=True)
class LearnerProgress:
    """What the learner process has done."""

    batches: int
    """batches learned from"""
    updates: int
    """updates behind the present network, those of earlier learner processes included"""
    loss: float
    """of the last batch"""
    stale: int
    """priorities whose item had left the table"""
    published_bytes: int
    """of the tensors that it last published"""
    reconnects: int
    """sessions that its client had to open anew, since its start"""
    latencies: dict[str, Histogram] = field(default_factory=dict)
    """by call: sample, learn, update, publish, table info"""


@dataclass(frozen=True)
class Evaluation:
    """One greedy evaluation by the learner."""

    updates: int
    mean_return: float
    """mean undiscounted return of the greedy episodes"""
    confirmed: float | None
    """mean return on as many episodes with fresh seeds, run only where the first mean reached the threshold"""
    solved: bool
    """both means reached the threshold"""


Message = ActorProgress | LearnerProgress | Evaluation
_KINDS: dict[str, type[ActorProgress] | type[LearnerProgress] | type[Evaluation]] = {
    kind.__name__: kind for kind in (ActorProgress, LearnerProgress, Evaluation)
}


def encode(message: Message) -> bytes:
    """One line, its end included."""
    fields: dict[str, Any] = asdict(message)
    if "latencies" in fields:
        fields["latencies"] = {name: histogram.counts for name, histogram in message.latencies.items()}  # type: ignore[union-attr]
    if "losses" in fields:
        fields["losses"] = [loss._asdict() for loss in message.losses]  # type: ignore[union-attr]
    return json.dumps({"kind": type(message).__name__, **fields}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of a line that `encode` made."""
    fields: dict[str, Any] = json.loads(line)
    kind = _KINDS[fields.pop("kind")]
    if "latencies" in fields:
        fields["latencies"] = {
            name: Histogram({int(bucket): count for bucket, count in counts.items()})
            for name, counts in fields["latencies"].items()
        }
    if "losses" in fields:
        fields["losses"] = [Loss(**loss) for loss in fields["losses"]]
    return kind(**fields)
