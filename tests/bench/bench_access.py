"""How long clients wait for a ping, an insert and a sample of 32: vhost against UDP and TCP, the same server.

Rows are taken in blocks in turns. A kernel row counts in its best placement.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from placed import (
    CLIENT_CORE,
    SERVER_CORE,
    TOML,
    PlacedServer,
    Subject,
    by_state,
    json_lines,
    line_ns,
    p50_us,
    pinned,
    two_cores,
)

CALLS = ("ping", "insert", "sample")
PLACEMENTS = {
    "spinning": (SERVER_CORE, True),
    "sleeping on two cores": (SERVER_CORE, False),
    "sleeping on one core": (CLIENT_CORE, False),
}
C_BLOCKS, C_ROUNDS = 15, 300
PYTHON_BLOCKS, PYTHON_ROUNDS = 11, 150
C_TARGET, PYTHON_TARGET = 0.75, 0.45

Row = tuple[str, str]
Figures = dict[str, dict[Row, list[float]]]
"""by call and row: microseconds by block"""


def c_clients() -> tuple[Figures, list[float]]:
    figures: Figures = {call: defaultdict(list) for call in CALLS}
    lines: dict[int, list[float]] = defaultdict(list)
    for found in json_lines("access", C_BLOCKS, C_ROUNDS):
        figures[found["call"]][found["path"], found["placement"]].append(found["p50_ns"] / 1000)
        lines[found["block"]].append(found["line_ns"])
    return figures, [statistics.median(found) for found in lines.values()]


def python_clients() -> tuple[Figures, list[float]]:
    figures: Figures = {call: defaultdict(list) for call in CALLS}
    lines: list[float] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="netreplay-")))
        rows: dict[Row, tuple[PlacedServer, Subject]] = {}
        stack.enter_context(pinned())
        for path in ("vhost", "udp", "tcp"):
            for placement, (core, busy) in PLACEMENTS.items():
                server = PlacedServer(TOML, folder / str(len(rows)), path, core, busy)
                stack.callback(server.close)
                subject = Subject(server.connect())
                server.halt()

                def close(server=server, subject=subject):
                    server.go_on()
                    subject.close()

                stack.callback(close)
                rows[path, placement] = server, subject
        for _ in range(PYTHON_BLOCKS):
            lines.append(line_ns())
            for row, (server, subject) in rows.items():
                server.go_on()
                for call in CALLS:
                    figures[call][row].append(p50_us(getattr(subject, call), PYTHON_ROUNDS))
                subject.replay.tables()
                server.halt()
    return figures, lines


def report(who: str, figures: Figures, lines: list[float], target: float) -> None:
    print(f"\n{who} clients, p50 in us; line's round trip {statistics.median(lines):.0f} ns")
    for call in CALLS:
        medians = {row: statistics.median(values) for row, values in figures[call].items()}
        for path in ("vhost", "udp", "tcp"):
            print(f"  {call:7} {path:6}" + "".join(f"{name}: {medians[path, name]:6.2f}   " for name in PLACEMENTS))
        for kernel in ("udp", "tcp"):
            best = min(PLACEMENTS, key=lambda name: medians[kernel, name])
            pairs = zip(figures[call]["vhost", "spinning"], figures[call][kernel, best], strict=True)
            below = [1 - vhost / other for vhost, other in pairs]
            median = statistics.median(below)
            print(
                f"  {call:7} vhost is {median:.0%} below {kernel} {best} (>= {target:.0%}): "
                f"{'met' if median >= target else 'MISSED'}; {by_state(lines, below, '.0%')}"
            )


def test_access_latency():
    two_cores()
    c, c_lines = c_clients()
    python, python_lines = python_clients()
    report("C", c, c_lines, C_TARGET)
    report("Python", python, python_lines, PYTHON_TARGET)
    for call in CALLS:
        of_c, of_python = (statistics.median(f[call]["vhost", "spinning"]) for f in (c, python))
        share = of_python - of_c
        print(f"  {call:7} over vhost: Python's share {share:.2f} us, {share / of_python:.0%} of {of_python:.2f} us")
