"""`netreplay demo`: a server, actors and a learner on CartPole, each a process of its own, under a supervisor."""

from __future__ import annotations

from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

import click

from netreplay.clients.demo.config import ENVIRONMENT, Config
from netreplay.errors import BadConfigError

_NEEDS = ("torch", "gymnasium", "matplotlib", "rich")


@click.command()
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**31 - 1), help="Of everything random.")
@click.option(
    "--seconds",
    type=click.FloatRange(1.0, 86_400.0),
    help="Run exactly so long. Without it: until solved, at most 300 s (exit code 3 when that is not enough).",
)
@click.option("--actors", default=2, show_default=True, type=click.IntRange(1, 64), help="Actor processes.")
@click.option("--env", "environment", default=ENVIRONMENT, show_default=True, help="Gymnasium's name.")
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
def demo(seed: int, seconds: float | None, actors: int, environment: str, transport: str, out: Path | None) -> int:
    """Learn CartPole with a server, actors and a learner, each a process of its own; kill one and watch."""
    if environment != ENVIRONMENT:
        raise BadConfigError(f"--env: {environment!r} is not there yet; {ENVIRONMENT} is", value=environment)
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise BadConfigError(f"demo: {', '.join(missing)} cannot be imported; pip install 'netreplay[demo]'")
    folder = out or Path(f"netreplay-demo-{datetime.now():%Y%m%d-%H%M%S}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "processes").mkdir(exist_ok=True)
    except OSError as error:
        raise BadConfigError(f"--out: {folder}: {error.strerror}", value=str(folder)) from None

    from netreplay.clients.demo.run import run

    try:
        return run(Config(seed=seed, actors=actors, environment=environment, transport=transport), folder, seconds)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BadConfigError(f"demo: {error.filename or folder}: {error.strerror}", value=str(folder)) from None
