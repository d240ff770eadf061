"""What a run moved per second, for the report and for a person: a record in numbers and in words."""

from __future__ import annotations

from functools import cache
from typing import Any

from netreplay.clients.demo.config import Config
from netreplay.clients.demo.latency import Histogram, human
from netreplay.clients.demo.record import RATES, Record
from netreplay.layout import step_layout
from netreplay.memory import human as human_bytes
from netreplay.spec import Spec

_STEP = ("act", "step", "append")
"""what an environment step consists of, waits left out"""


@cache
def _step_bytes(table: str) -> int:
    store = Spec.from_toml(Config(table=table).tables).stores[table]
    return step_layout(store).step_bytes


def step_bytes(config: Config) -> int:
    """Of one step in the store."""
    return _step_bytes(config.table)


def append_share(record: Record) -> float | None:
    """The share of an environment step (choose, play, append) that the append takes; None before the first."""
    choose, play, append = (record.latencies.get(name, Histogram()).seconds for name in _STEP)
    return append / (choose + play + append) if append else None


def _mean_return(record: Record) -> float | None:
    return sum(point.value for point in record.returns) / len(record.returns) if record.returns else None


def contents(record: Record) -> dict[str, Any]:
    """Rates of the whole run, each since its counter first moved; per second, where nothing else is said."""
    config = record.config
    rate = {name: record.averages[name].rate for name in (*RATES, "learned", "updated")}
    actors = {name: record.averages[f"steps {name}"].rate for name in record.actors}
    mean, share = _mean_return(record), append_share(record)
    return {
        "environment_steps": round(rate["steps"], 2),
        "environment_frames": round(rate["steps"] * config.frame_skip, 2),
        "actors": {
            name: {"environment_steps": round(steps, 2), "environment_frames": round(steps * config.frame_skip, 2)}
            for name, steps in actors.items()
        },
        "items_inserted": round(rate["inserts"], 2),
        "inserted_megabytes": round(rate["steps"] * step_bytes(config) / 1e6, 3),
        "batches": round(rate["batches"], 2),
        "batch_size": config.batch_size,
        "sampled_megabytes": round(rate["sampled bytes"] / 1e6, 3),
        "learner_steps": round(rate["learned"], 2),
        "priorities_updated": round(rate["updated"], 2),
        "parameter_versions": record.server.total("server", "publishes"),
        "parameter_bytes": record.published_bytes,
        "parameter_fetches": record.server.total("server", "fetches"),
        "mean_episode_return": None if mean is None else round(mean, 2),
        "append_share_of_step": None if share is None else round(share, 4),
    }


def lines(record: Record) -> list[str]:
    """The same for a person, a few lines."""
    found = contents(record)
    each = " + ".join(f"{actor['environment_frames']:,.0f}" for actor in found["actors"].values())
    share, mean = found["append_share_of_step"], found["mean_episode_return"]
    part = "-" if share is None else f"{share:.1%}"
    append, sample = (_p50_p99(record, name) for name in ("append", "sample"))
    versions = f"{found['parameter_versions']:,} parameter versions of {human_bytes(found['parameter_bytes'])}"
    batches = f"{found['batches']:.1f} batches/s of {found['batch_size']}, {found['sampled_megabytes']:.1f} MB/s"
    return [
        f"actors   {found['environment_frames']:,.0f} frames/s ({each}), {found['environment_steps']:,.0f} steps/s",
        f"in       {found['items_inserted']:,.0f} items/s, {found['inserted_megabytes']:.2f} MB/s",
        f"append   {append}, {part} of an environment step",
        f"out      {batches}",
        f"sample   {sample}",
        f"learner  {found['learner_steps']:.1f} steps/s, {found['priorities_updated']:,.0f} priorities/s; {versions}",
        f"return   {'no episode ended yet' if mean is None else f'{mean:.1f}, mean of {record.episodes:,} episodes'}",
    ]


def _p50_p99(record: Record, name: str) -> str:
    histogram = record.latencies.get(name, Histogram())
    return f"p50 {human(histogram.percentile(0.5))}, p99 {human(histogram.percentile(0.99))}"
