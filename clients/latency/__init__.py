"""`netreplay latency`: what the calls of a client cost, and where: in the client, on the wire, in the server."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from netreplay import address as addresses
from netreplay.clients.arguments import seconds
from netreplay.clients.connect import connect
from netreplay.clients.latency.figures import Series
from netreplay.clients.latency.measure import LEAST_BLOCKS, Results, choose_rounds, measure
from netreplay.clients.latency.record import Environment, record
from netreplay.clients.latency.subject import DEFAULT_FILL, OPERATIONS, Sizes, Subject, table_of
from netreplay.clients.latency.table import render
from netreplay.errors import BadConfigError, NetreplayError


@dataclass(frozen=True)
class _Settings:
    """What the options say."""

    operations: list[str]
    table: str | None
    sizes: Sizes
    rounds: int | None
    blocks: int
    poll: str
    timeout: float
    core: int | None
    into_used: bool
    json: str | None
    plot: Path | None


@click.command()
@click.argument("urls", nargs=-1, required=True, metavar="URL...")
@click.option("--ops", default=",".join(OPERATIONS), show_default=True, help="What to measure, separated by commas.")
@click.option("--table", help="The table to use, in every memory; by default its first.")
@click.option("--batch", default=32, show_default=True, type=click.IntRange(1), help="Rows of a sample.")
@click.option(
    "--update-batch",
    default=512,
    show_default=True,
    type=click.IntRange(1),
    help="Keys of an update, if there are so many.",
)
@click.option(
    "--fill",
    type=click.IntRange(1),
    help=f"Items to put in before measuring (at least twice the batch, and min_size).  [default: {DEFAULT_FILL}, "
    "or the capacity]",
)
@click.option("--into-used", is_flag=True, help="Write into a table even if it holds, or has held, items.")
@click.option(
    "--rounds",
    type=click.IntRange(LEAST_BLOCKS),
    help="Calls of each operation on each memory.  [default: what takes about 10 s in all, 200 to 20,000]",
)
@click.option(
    "--blocks",
    default=10,
    show_default=True,
    type=click.IntRange(LEAST_BLOCKS),
    help="Turns that the calls are measured in.",
)
@click.option(
    "--poll",
    default="adaptive",
    show_default=True,
    type=click.Choice(["adaptive", "busy"]),
    help="How the client waits: spinning briefly, or always.",
)
@click.option("--core", type=click.IntRange(0), help="The core to pin this client to.")
@click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait for the server, for each answer.")
@click.option(
    "--json", "json_file", metavar="FILE", help='Write the report as JSON; "-": to stdout, in place of the table.'
)
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw it (.png, .svg, .pdf); needs matplotlib."
)
def latency(
    urls: tuple[str, ...],
    ops: str,
    table: str | None,
    batch: int,
    update_batch: int,
    fill: int | None,
    into_used: bool,
    rounds: int | None,
    blocks: int,
    poll: str,
    core: int | None,
    timeout: float,
    json_file: str | None,
    plot: Path | None,
) -> int:
    """Measure what calls cost on each memory at URL, and compare all with the first.

    It writes random steps into the table that it uses.
    """
    settings = _Settings(
        operations=_operations(ops),
        table=table,
        sizes=Sizes(batch, update_batch, fill),
        rounds=rounds,
        blocks=blocks,
        poll=poll,
        timeout=seconds(timeout),
        core=core,
        into_used=into_used,
        json=json_file,
        plot=plot,
    )
    if rounds is not None and rounds < blocks:
        raise BadConfigError(f"--rounds: {rounds} are fewer than the {blocks} blocks; lower --blocks", value=rounds)
    labels = _labels(urls)
    _check_outputs(settings)
    with ExitStack() as stack:
        environment = Environment.begin()
        stack.enter_context(_pinned(core))
        subjects = [stack.enter_context(_opened(url, label, settings)) for url, label in zip(urls, labels, strict=True)]
        return _Run(settings, subjects, environment).run()


class _Run:
    """From filled memories to the report."""

    def __init__(self, settings: _Settings, subjects: Sequence[Subject], environment: Environment) -> None:
        self._settings, self._subjects, self._environment = settings, subjects, environment
        self._labels = [subject.label for subject in subjects]
        self._results: Results = {name: [Series() for _ in subjects] for name in settings.operations}
        self._began = datetime.now(UTC)
        self._start = time.monotonic()
        self._rounds: dict[str, int] = {}

    def run(self) -> int:
        """Measures and reports; what was measured is reported also when Ctrl-C or an error ends it."""
        code, failure = 0, None
        try:
            self._measure()
        except KeyboardInterrupt:
            code = 130
            click.echo("netreplay: interrupted", err=True)
        except NetreplayError as error:
            failure = error
        _progress("")
        self._environment.end()
        self._report(complete=code == 0 and failure is None)
        if failure is not None:
            raise failure
        return code

    def _measure(self) -> None:
        settings = self._settings
        # Before any is written to: all of them may be.
        if not settings.into_used:
            for subject in self._subjects:
                _refuse_used(subject)
        for subject in self._subjects:
            click.echo(
                f"netreplay: {subject.label}: writing random steps into table {subject.table!r} of {subject.url}, "
                f"up to {subject.target:,} items",
                err=True,
            )
            subject.fill(lambda items, label=subject.label: _progress(f"{label}: {items:,} items"))  # type: ignore[misc]
        _progress("trying how long a call takes")
        if settings.rounds is None:
            self._rounds = choose_rounds(self._subjects, settings.operations, settings.blocks)
        else:
            self._rounds = dict.fromkeys(settings.operations, settings.rounds)
        measure(self._subjects, self._rounds, settings.blocks, self._results, _progress)

    # ---- reporting ----

    def _report(self, *, complete: bool) -> None:
        settings = self._settings
        measured = [
            (name, self._call(name), [series.summary() for series in self._results[name]])
            for name in settings.operations
        ]
        if all(summary is None for _, _, summaries in measured for summary in summaries):
            return
        if not complete:
            click.echo("netreplay: not complete: what was measured until then follows", err=True)
        if settings.json != "-":
            click.echo(self._head())
            click.echo("")
            click.echo(render(self._labels, measured))
        if settings.json is not None:
            text = json.dumps(self._record(measured, complete), indent=2)
            if settings.json == "-":
                click.echo(text)
            else:
                _write("--json", lambda: Path(settings.json or "").write_text(text + "\n", encoding="utf-8"))
        if settings.plot is not None:
            self._draw(settings.plot)

    def _call(self, name: str) -> str:
        """What one call is, of the memory where it is most."""
        return max((subject.size(name) for subject in self._subjects), key=lambda text: (len(text), text))

    def _head(self) -> str:
        width = max(len(label) for label in self._labels)
        lines = [self._environment.line(self._settings.core)]
        lines += [
            f"{subject.label.ljust(width)}  {subject.url}: table {subject.table!r}, {subject.items:,} items, "
            f"steps of {subject.step_bytes:,} B, rows of {subject.row_bytes:,} B"
            for subject in self._subjects
        ]
        lines[0] += f"; polling {self._settings.poll}"
        if len({(subject.step_bytes, subject.row_bytes, subject.items) for subject in self._subjects}) > 1:
            lines.append("the tables differ, and so does what a call has to do")
        return "\n".join(lines)

    def _record(self, measured: Any, complete: bool) -> dict[str, Any]:
        settings = self._settings
        return record(
            began=self._began.isoformat(timespec="seconds"),
            seconds=time.monotonic() - self._start,
            complete=complete,
            environment=self._environment.fields(settings.core),
            settings={
                "rounds": self._rounds,
                "blocks": settings.blocks,
                "batch": settings.sizes.batch,
                "update_batch": settings.sizes.update_batch,
                "poll": settings.poll,
                "into_used": settings.into_used,
            },
            memories=[
                {
                    "url": subject.url,
                    "label": subject.label,
                    "table": subject.table,
                    "items": subject.items,
                    "step_bytes": subject.step_bytes,
                    "row_bytes": subject.row_bytes,
                    "update_batch": subject.update_batch,
                    "max_datagram": subject.replay.counters().max_datagram,
                }
                for subject in self._subjects
            ],
            measured=measured,
        )

    def _draw(self, path: Path) -> None:
        from netreplay.clients.latency.plot import draw

        operations = [
            (name, self._call(name), self._results[name])
            for name in self._settings.operations
            if any(series.blocks for series in self._results[name])
        ]
        _write("--plot", lambda: draw(self._labels, operations, path, self._environment.line(self._settings.core)))


def _operations(text: str) -> list[str]:
    """Without repeats, in the order given."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in OPERATIONS:
            raise BadConfigError(f"--ops: {name!r} is not one of {', '.join(OPERATIONS)}", value=name)
    return list(dict.fromkeys(names))


def _labels(urls: Sequence[str]) -> list[str]:
    """Each memory's scheme, with a number where several have it; BadAddressError for what is no address."""
    schemes = [addresses.parse(url).scheme for url in urls]
    labels = []
    for index, scheme in enumerate(schemes):
        alone = schemes.count(scheme) == 1
        labels.append(scheme if alone else f"{scheme} {schemes[: index + 1].count(scheme)}")
    return labels


def _check_outputs(settings: _Settings) -> None:
    """What would fail after the measuring fails before."""
    if settings.plot is not None and find_spec("matplotlib") is None:
        raise BadConfigError(
            "--plot: matplotlib cannot be imported; pip install 'netreplay[plot]', or leave --plot out"
        )
    if settings.plot is not None and settings.plot.suffix not in (".png", ".svg", ".pdf"):
        raise BadConfigError(f"--plot: {settings.plot} does not end in .png, .svg or .pdf", value=str(settings.plot))
    files = {"--json": None if settings.json in (None, "-") else Path(settings.json), "--plot": settings.plot}
    for option, path in files.items():
        if path is None:
            continue
        if path.is_dir():
            raise BadConfigError(f"{option}: {path} is a folder; a file is wanted", value=str(path))
        if not path.parent.is_dir():
            raise BadConfigError(f"{option}: {path}: there is no folder {path.parent}", value=str(path))
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise BadConfigError(f"{option}: {path}: cannot be written", value=str(path))


def _write(option: str, write: Any) -> None:
    try:
        write()
    except OSError as error:
        raise BadConfigError(f"{option}: cannot be written: {error.strerror or error}") from None


def _refuse_used(subject: Subject) -> None:
    used = subject.used()
    if used:
        raise BadConfigError(
            f"table {subject.table!r} of {subject.url} holds, or has held, {used:,} items, and latency writes random "
            "steps into it; take another (--table), or say --into-used if it may be spoilt"
        )


@contextmanager
def _opened(url: str, label: str, settings: _Settings) -> Iterator[Subject]:
    with connect(url, auth="off", timeout=settings.timeout, poll=settings.poll) as replay:
        yield Subject(replay, label, table_of(replay.spec, settings.table, url), settings.sizes)


@contextmanager
def _pinned(core: int | None) -> Iterator[None]:
    """This thread, and those that it starts."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
    except OSError:
        known = ", ".join(map(str, sorted(before)))
        raise BadConfigError(
            f"--core: {core} is no core that this process may use; it may use {known}", value=core
        ) from None
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _progress(text: str) -> None:
    """One line that the next overwrites; nothing where nobody would see it."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{text}", nl=False, err=True)
