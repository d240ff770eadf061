"""`netreplay demo`: a server, actors and a learner, each a process of its own, under a supervisor."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from netreplay.clients.demo.config import ENVIRONMENT
from netreplay.clients.demo.environment import configure
from netreplay.errors import BadConfigError


@click.command()
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**31 - 1), help="Of everything random.")
@click.option(
    "--seconds",
    type=click.FloatRange(1.0, 86_400.0),
    help="Run exactly so long. Without it: CartPole until solved, at most 300 s (exit code 3 when that is not "
    "enough); an Atari game 60 s.",
)
@click.option("--actors", default=2, show_default=True, type=click.IntRange(1, 64), help="Actor processes.")
@click.option("--env", "environment", default=ENVIRONMENT, show_default=True, help="Or an Atari game: ALE/Pong-v5.")
@click.option("--batch-size", type=click.IntRange(1, 4096), help="Of the learner; by default 128, for Atari 32.")
@click.option(
    "--transport",
    type=click.Choice(["vhost", "udp"]),
    default="vhost",
    show_default=True,
    help="How the processes reach the server: over shared memory, or over the kernel's UDP on loopback.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the report; by default netreplay-demo-TIME here.",
)
def demo(
    seed: int,
    seconds: float | None,
    actors: int,
    environment: str,
    batch_size: int | None,
    transport: str,
    out: Path | None,
) -> int:
    """Learn CartPole with a server, actors and a learner, each a process of its own; kill one and watch.

    Or move an Atari game's frames the same way: the run is then for its rates, and ends well when data flowed to
    every process until the end (else exit code 4).
    """
    chosen = {} if batch_size is None else {"batch_size": batch_size}
    config = configure(environment, seed=seed, actors=actors, transport=transport, **chosen)
    folder = out or Path(f"netreplay-demo-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "processes").mkdir(exist_ok=True)
    except OSError as error:
        raise BadConfigError(f"--out: {folder}: {error.strerror}", value=str(folder)) from None

    from netreplay.clients.demo.run import run

    try:
        return run(config, folder, seconds)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BadConfigError(f"demo: {error.filename or folder}: {error.strerror}", value=str(folder)) from None
