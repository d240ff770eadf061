"""One demo from start to report."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import FrameType

import click

from netreplay.clients.demo import machine, report, throughput
from netreplay.clients.demo.config import Config
from netreplay.clients.demo.record import Record
from netreplay.clients.demo.supervisor import ProcessFailedError, Supervisor
from netreplay.clients.demo.view import LineView, LiveView, View

UNSOLVED, STALLED = 3, 4  # exit codes
_TICK_SECONDS = 0.05


@dataclass
class Interrupt:
    """Which signal wants the run to end, 0 for none."""

    signal: int = 0


@contextmanager
def interrupts() -> Iterator[Interrupt]:
    """Catches Ctrl-C, SIGTERM and the closing of the terminal for the length of the block."""
    interrupt = Interrupt()

    def note(number: int, _frame: FrameType | None) -> None:
        interrupt.signal = number

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(config: Config, folder: Path, seconds: float | None) -> int:
    """Runs until solved, or exactly `seconds`.

    The exit code: 0, 3 for unsolved, 4 for stalled (nothing is evaluated, and not all was well at the end either), 128
    + the signal that ended it.
    """
    described, versions = machine.describe(), machine.versions()
    record = Record(config, config.seconds if seconds is None else seconds)
    view: View = LiveView(record) if sys.stdout.isatty() else LineView(record, sys.stdout)
    with interrupts() as interrupt:
        try:
            with view, Supervisor(config, folder, record) as supervisor:
                outcome = _watch(supervisor, record, view, interrupt, until_solved=config.evaluated and seconds is None)
        except ProcessFailedError:
            report.write(record, folder, "failed", described, versions)
            raise
        click.echo(f"netreplay demo: {_verdict(record, outcome)}")
        report.write(record, folder, outcome, described, versions)
    if not config.evaluated:
        for line in throughput.lines(record):
            click.echo(f"  {line}")
    click.echo(f"netreplay demo: {_counts(record)}; report in {folder}")
    if interrupt.signal:
        return 128 + interrupt.signal
    return {"unsolved": UNSOLVED, "stalled": STALLED}.get(outcome, 0)


def _watch(supervisor: Supervisor, record: Record, view: View, interrupt: Interrupt, *, until_solved: bool) -> str:
    """Until the end; why it is the end."""
    outcome = ""
    chart = Thread(target=report.load_chart, daemon=True)
    while not outcome:
        supervisor.watch(min(_TICK_SECONDS, max(0.0, record.limit - record.now)))
        view.show()
        if chart.ident is None and record.processes["actor 0"].working:
            chart.start()  # so that the report is written at once when the end comes
        if interrupt.signal:
            outcome = "interrupted"
        elif until_solved and record.solved is not None:
            outcome = "solved"
        elif record.now >= record.limit:
            outcome = "unsolved" if until_solved else "time passed"
    record.end()
    if outcome == "time passed" and not record.config.evaluated and not all_well(record):
        return "stalled"
    return outcome


def all_well(record: Record) -> bool:
    """Whether every process works and data flowed in the last seconds: in, out, and parameters at all."""
    flows = all(meter.rate(record.now) > 0 for meter in record.rates.values())
    working = all(state.working for state in record.processes.values())
    return flows and working and record.server.total("server", "publishes") > 0


def _verdict(record: Record, outcome: str) -> str:
    if not record.config.evaluated:
        return f"{record.config.environment}: {outcome} after {record.now:.0f} s"
    for point, found in record.evaluations:
        if found.solved and found.confirmed is not None:
            episodes = record.config.evaluation_episodes
            return (
                f"solved after {point.seconds:.0f} s and {point.steps:,} steps: mean return {found.mean_return:.1f} "
                f"over {episodes} greedy episodes, {found.confirmed:.1f} over {episodes} more"
            )
    best = max((point.value for point, _ in record.evaluations), default=None)
    reached = "no evaluation yet" if best is None else f"best greedy mean {best:.1f}"
    return f"{outcome} after {record.now:.0f} s, not solved: {reached}"


def _counts(record: Record) -> str:
    counted, restarts = record.server, len(record.restarts)
    megabytes = counted.total("server", "sampled_bytes") / 1e6
    return (
        f"the server counted {counted.total('table', 'inserted'):,} items in, "
        f"{counted.total('server', 'batches'):,} batches and {megabytes:,.1f} MB out; "
        f"{restarts} restart{'' if restarts == 1 else 's'}"
    )
