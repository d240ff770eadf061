"""`netreplay serve`: a replay memory behind an address, until SIGINT or SIGTERM."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
from pathlib import Path
from types import FrameType

import click

from netreplay.appliance.config import POLLS, load, override, require_auth
from netreplay.appliance.eal import arguments
from netreplay.appliance.server import CheckpointProgress, Server
from netreplay.appliance.stats import StatsFile
from netreplay.errors import BadConfigError, NetreplayError
from netreplay.memory import arithmetic, human


def announce(server: Server) -> str:
    """The line that says where it listens, what it took, and that it is ready."""
    memory = human(server.engine_bytes + server.session_bytes)
    sessions = f"{server.config.sessions} sessions {human(server.session_bytes)}"
    how = f"auth {server.config.auth or 'by file mode'}, polling {server.config.poll}"
    return f"netreplay: listening on {', '.join(server.urls)}, memory {memory} ({sessions}), {how}: ready"


def _restored(server: Server) -> None:
    """Says what the checkpoint file brought back."""
    if server.restored is None:
        return
    items = ", ".join(f"{name} {count}" for name, count in server.restored.items.items())
    click.echo(f"netreplay: restored from {server.restored.path}: {items} items, {server.restored.streams} streams")
    for line in server.restored.differences:
        click.echo(f"netreplay: restored: {line}")


def _far(progress: CheckpointProgress) -> None:
    click.echo(f"netreplay: checkpoint: {human(progress.bytes)} of about {human(progress.estimate)}")


def _save(server: Server) -> None:
    """The checkpoint on stop; one that cannot be written is said, and the exit code is 1."""
    settings = server.config.checkpoint
    if settings is None or not settings.on_stop:
        return
    click.echo(f"netreplay: stopped serving, writing checkpoint {settings.path}")
    try:
        done = server.save_stopped(_far)
    except NetreplayError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"netreplay: checkpoint {settings.path}: {human(done.bytes)} in {done.seconds:.1f} s")


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _cannot_tell(option: str, value: object, error: OSError) -> BadConfigError:
    return BadConfigError(f"{option}: {value}: {error.strerror}", field=option, value=value)


def check_ready(ready_file: Path | None, ready_fd: int | None) -> None:
    """Refuses, before anything is taken, where the address could not be written to."""
    if ready_file is not None:
        try:
            if ready_file.is_dir():
                raise IsADirectoryError(0, "is a directory")
            _partial(ready_file).write_bytes(b"")
            _partial(ready_file).unlink()
        except OSError as error:
            raise _cannot_tell("--ready-file", ready_file, error) from None
    if ready_fd is not None:
        try:
            if fcntl.fcntl(ready_fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                raise PermissionError(0, "is open for reading only")
        except (OverflowError, ValueError):
            raise BadConfigError(f"--ready-fd: {ready_fd}: is no descriptor", field="--ready-fd") from None
        except OSError as error:
            raise _cannot_tell("--ready-fd", ready_fd, error) from None


def _tell(server: Server, ready_file: Path | None, ready_fd: int | None) -> None:
    """Says "ready" when whoever waits for a file or a descriptor was told."""
    if ready_file is not None:
        try:
            _partial(ready_file).write_text("\n".join(server.urls) + "\n", encoding="utf-8")
            _partial(ready_file).replace(ready_file)
        except OSError as error:
            raise _cannot_tell("--ready-file", ready_file, error) from None
    if ready_fd is not None:
        try:
            os.write(ready_fd, ("\n".join(server.urls) + "\n").encode())
            if ready_fd > 2:
                os.close(ready_fd)
        except OSError as error:
            raise _cannot_tell("--ready-fd", ready_fd, error) from None
    click.echo(announce(server))


@click.command()
@click.option("-c", "--config", "path", required=True, metavar="FILE", help="TOML file: stores, tables, [server].")
@click.option(
    "--listen",
    metavar="ADDRESS",
    multiple=True,
    help="Where to listen: vhost:///path/to.sock or udp://host:port (port 0 takes any free one). Can be given again.",
)
@click.option(
    "--auth", type=click.Choice(["off"]), help="How clients are authenticated; until keys are there only 'off'."
)
@click.option("--poll", type=click.Choice(POLLS), help="'adaptive' sleeps when idle, 'busy' keeps its core.")
@click.option(
    "--ready-file", type=click.Path(path_type=Path, dir_okay=False), help="File to write the addresses to when ready."
)
@click.option("--ready-fd", type=int, help="Open file descriptor to write the addresses to when ready.")
@click.option(
    "--stats-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to keep the counters in, as JSON: replaced twice a second, and at the end.",
)
@click.option("--print-eal", is_flag=True, help="Print the arguments that DPDK would get, and end.")
@click.option("-v", "--verbose", is_flag=True, help="Also print how the memory is made up.")
def serve(
    path: str,
    listen: tuple[str, ...],
    auth: str | None,
    poll: str | None,
    ready_file: Path | None,
    ready_fd: int | None,
    stats_file: Path | None,
    print_eal: bool,
    verbose: bool,
) -> None:
    """Serve a replay memory until SIGINT or SIGTERM."""
    spec, config = load(Path(path))
    config = override(config, listen=listen or None, auth=auth, poll=poll)
    require_auth(config)
    if print_eal:
        click.echo(shlex.join(arguments(config)) if config.ports else "netreplay: no [port.NAME]: DPDK is not started")
        return
    check_ready(ready_file, ready_fd)
    with Server(spec, config) as server:

        def stop(_signal: int, _frame: FrameType | None) -> None:
            server.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        server.start()
        stats = None if stats_file is None else StatsFile(stats_file, server)
        _restored(server)
        _tell(server, ready_file, ready_fd)
        if verbose:
            for name, info in server.ports.items():
                click.echo(f"netreplay: port {name}: {info}")
            for line in arithmetic(spec):
                click.echo(f"netreplay: {line}")
        if stats is None:
            server.wait()
        else:
            stats.keep()
        _save(server)
    click.echo("netreplay: stopped")
