"""`netreplay tables` and `netreplay ping`: a look at a running server."""

from __future__ import annotations

import json

import click

from netreplay.clients.connect import connect
from netreplay.clients.replay import TableInfo
from netreplay.memory import human

_COLUMNS = (
    "table",
    "items",
    "capacity",
    "min",
    "inserted",
    "sampled",
    "updated",
    "evicted",
    "steps",
    "bytes",
    "max priority",
)


def _row(info: TableInfo) -> list[str]:
    return [
        info.name,
        str(info.size),
        str(info.capacity),
        str(info.min_size),
        str(info.inserted),
        str(info.sampled),
        str(info.updated),
        str(info.evicted_capacity + info.evicted_steps + info.evicted_sampled),
        f"{info.steps}/{info.steps_capacity}",
        human(info.item_bytes_held + info.step_bytes_held),
        f"{info.max_priority:.4g}",
    ]


@click.command()
@click.argument("url")
@click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait for the server.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with every number.")
def tables(url: str, timeout: float, as_json: bool) -> None:
    """Show what is in the tables of the server at URL."""
    with connect(url, auth="off", timeout=timeout) as replay:
        infos = replay.tables()
    if as_json:
        click.echo(json.dumps({name: info._asdict() for name, info in infos.items()}, indent=2))
        return
    lines = [list(_COLUMNS), *(_row(info) for info in infos.values())]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    for line in lines:
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        click.echo("  ".join(cells).rstrip())


@click.command()
@click.argument("url")
@click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait for each answer.")
@click.option("-n", "--count", default=10, show_default=True, type=click.IntRange(1), help="Round trips.")
@click.option(
    "-s", "--size", default=64, show_default=True, type=click.IntRange(0), help="Bytes each way, in one datagram."
)
def ping(url: str, timeout: float, count: int, size: int) -> None:
    """Measure round trips to the server at URL."""
    with connect(url, auth="off", timeout=timeout) as replay:
        pings = [replay.ping(size) for _ in range(count)]
    trips = sorted(p.round_trip * 1e6 for p in pings)
    server = sorted(p.server * 1e6 for p in pings)
    click.echo(
        f"{url}: {count} round trips of {size} B: least {trips[0]:.1f} us, median {trips[count // 2]:.1f} us, "
        f"most {trips[-1]:.1f} us; in the server {server[count // 2]:.1f} us"
    )
