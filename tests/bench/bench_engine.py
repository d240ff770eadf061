"""The engine in the process against cpprb and TorchRL, from Python to arrays in hand; and how it grows with its items.

One process per subject, all on one core, of which only the measured one runs. Subjects take turns, five times; a time
is the median of a turn's calls, a ratio the median over turns. Keys and priorities are new in every call. Writes
build/reports/engine/{table.txt, figures.json, chart.png}.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest
from peers import ROOT, python_of
from placed import CLIENT_CORE

REPORT = ROOT / "build/reports/engine"
SUBJECTS = Path(__file__).parent / "subjects"
TURNS = 5
CALLS = {"append_1": 2000, "append_512": 100, "sample_32": 1000, "sample_512": 200, "update_512": 200}
ATARI_CALLS = {"sample_32": 200, "sample_512": 20}
TARGETS = {"append_1": 5.0, "append_512": 1.0, "sample_32": 4.0, "sample_512": 5.0, "update_512": 3.0}
"""how many times as fast as cpprb"""
ATARI_ITEMS = 50_000
MEMCPY = 0.7
BYTES = 0.25
GROWTH, GROWTH_ITEMS = 3.0, (10**3, 10**4, 10**5, 10**6, 10**7)


class Subject:
    """One subject's process; see subjects/worker.py."""

    def __init__(self, script: str, python: Path, size: str, items: int) -> None:
        command = [str(python), str(SUBJECTS / f"{script}.py"), size, str(items), str(CLIENT_CORE)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.script = script
        self.bytes_per_item: float = self._answer()["bytes_per_item"]

    def _answer(self) -> Any:
        for line in self.process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise AssertionError(f"{self.script} ended: {self.process.wait()}")

    def time(self, call: str, rounds: int) -> float:
        """the median of so many calls, microseconds"""
        self.process.stdin.write(f"{call} {rounds}\n")
        self.process.stdin.flush()
        return float(self._answer())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def subject(name: str, size: str, items: int) -> Subject:
    scripts = {
        "netreplay": "netreplay_local",
        "cpprb": "cpprb_buffer",
        "torchrl": "torchrl_buffer",
        "memcpy": "netreplay_local",
    }
    scripts["cpprb, compressed"] = "cpprb_compressed"
    python = Path(sys.executable) if name in ("netreplay", "memcpy") else python_of(name.split(",")[0])
    return Subject(scripts[name], python, "copy" if name == "memcpy" else size, items)


class Report:
    """Lines for people, figures for programs."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.figures: list[dict[str, Any]] = []

    def say(self, line: str = "") -> None:
        print(line, flush=True)
        self.lines.append(line)

    def verdict(self, what: str, value: float, target: float, *, most: bool = False) -> None:
        met = value <= target if most else value >= target
        sign = "<=" if most else ">="
        self.say(f"    {what}: {value:.2f} ({sign} {target:g}): {'met' if met else 'MISSED'}")

    def write(self) -> None:
        REPORT.mkdir(parents=True, exist_ok=True)
        (REPORT / "table.txt").write_text("\n".join(self.lines) + "\n")
        (REPORT / "figures.json").write_text(json.dumps(self.figures, indent=1) + "\n")
        chart(self.figures)


@pytest.fixture(scope="module")
def report():
    made = Report()
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "?",
    )
    made.say(f"\n{cpu}, {os.cpu_count()} cores, L3 {l3_bytes() / 2**20:.0f} MiB, load {os.getloadavg()[0]:.1f}")
    yield made
    made.write()
    print(f"report: {REPORT.relative_to(ROOT)}")


def l3_bytes() -> int:
    text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    return int(text.read_text().strip().removesuffix("K")) * 1024 if text.exists() else 0


def take_turns(subjects: dict[str, Subject], calls: dict[str, int]) -> dict[str, dict[str, list[float]]]:
    """microseconds by call and subject, one for each turn"""
    times: dict[str, dict[str, list[float]]] = {call: {name: [] for name in subjects} for call in calls}
    for _ in range(TURNS):
        for call, rounds in calls.items():
            for name, one in subjects.items():
                times[call][name].append(one.time(call, rounds))
    return times


def ratio(times: dict[str, list[float]], of: str, to: str = "netreplay") -> float:
    return statistics.median(a / b for a, b in zip(times[of], times[to], strict=True))


def print_times(report: Report, size: str, items: int, times: dict[str, dict[str, list[float]]]) -> None:
    for call, by_name in times.items():
        cells = "  ".join(f"{name} {statistics.median(values):9.1f}" for name, values in by_name.items())
        report.say(f"{size:9}{items:>9}  {call:11} us: {cells}")
        report.figures += [
            {"size": size, "items": items, "call": call, "subject": name, "us": values}
            for name, values in by_name.items()
        ]


@pytest.mark.parametrize("items", [10**5, 10**6])
def test_small_transitions(report, items):
    with ExitStack() as stack:
        names = ("netreplay", "cpprb", "torchrl")
        subjects = {name: stack.enter_context(subject(name, "cartpole", items)) for name in names}
        times = take_turns(subjects, CALLS)
    print_times(report, "CartPole", items, times)
    for call, target in TARGETS.items():
        report.verdict(f"{call}, times as fast as cpprb", ratio(times[call], "cpprb"), target)
        report.say(f"    {call}, times as fast as TorchRL: {ratio(times[call], 'torchrl'):.2f}")


def test_frames(report):
    with ExitStack() as stack:
        subjects = {}
        for name in ("netreplay", "cpprb", "memcpy"):
            subjects[name] = stack.enter_context(subject(name, "atari", ATARI_ITEMS))
        report.say(
            f"slab of {ATARI_ITEMS * 7072 / 2**20:.0f} MiB, {ATARI_ITEMS * 7072 / max(l3_bytes(), 1):.0f} times the L3"
        )
        times = take_turns(subjects, ATARI_CALLS)
        held = {name: one.bytes_per_item for name, one in subjects.items()}
    with subject("cpprb, compressed", "atari", ATARI_ITEMS) as compressed:
        held["cpprb, compressed"] = compressed.bytes_per_item
    print_times(report, "Atari", ATARI_ITEMS, times)
    for call in ATARI_CALLS:
        report.verdict(f"{call}, times as fast as cpprb", ratio(times[call], "cpprb"), 1.0)
        report.verdict(f"{call}, of memcpy", ratio(times[call], "memcpy"), MEMCPY)
    for name in ("netreplay", "cpprb", "cpprb, compressed"):
        report.say(f"    {name}: {held[name]:.0f} B held per transition (growth of the process)")
    report.verdict("bytes, of cpprb's plain layout", held["netreplay"] / held["cpprb"], BYTES, most=True)


def test_growth(report):
    medians = {}
    for items in GROWTH_ITEMS:
        with subject("netreplay", "cartpole", items) as one:
            values = [one.time("sample_32", 1000) for _ in range(TURNS)]
        medians[items] = statistics.median(values)
        report.figures.append(
            {"size": "growth", "items": items, "call": "sample_32", "subject": "netreplay", "us": values}
        )
    report.say("sample of 32 by items, us: " + "  ".join(f"{items:.0e}: {us:.1f}" for items, us in medians.items()))
    report.verdict("largest to smallest", max(medians.values()) / min(medians.values()), GROWTH, most=True)


def test_tree(report):
    from placed import program

    output = subprocess.run(
        ["taskset", "-c", str(CLIENT_CORE), str(program("bench_tree"))],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    for line in output.splitlines():
        report.say(line)


def chart(figures: list[dict[str, Any]]) -> None:
    """One panel for each size; bars of microseconds by call and subject, on a logarithmic axis."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    panels = sorted({(f["size"], f["items"]) for f in figures if f["size"] != "growth"}, key=str)
    if not panels:
        return
    drawing, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 4), squeeze=False)
    for axis, (size, items) in zip(axes[0], panels, strict=True):
        rows = [f for f in figures if (f["size"], f["items"]) == (size, items)]
        calls = list(dict.fromkeys(f["call"] for f in rows))
        names = list(dict.fromkeys(f["subject"] for f in rows))
        for place, name in enumerate(names):
            heights = [
                statistics.median(next(f["us"] for f in rows if f["call"] == c and f["subject"] == name)) for c in calls
            ]
            at = [index + (place - (len(names) - 1) / 2) * 0.8 / len(names) for index in range(len(calls))]
            bars = axis.bar(at, heights, 0.8 / len(names), label=name)
            axis.bar_label(bars, [f"{h:.3g}" for h in heights], fontsize=7, rotation=90, padding=2)
        axis.set(yscale="log", ylabel="microseconds, less is better", title=f"{size}, {items:,} items")
        axis.margins(y=0.2)
        axis.set_xticks(range(len(calls)), [c.replace("_", " ") for c in calls], rotation=20)
        axis.legend(fontsize=8)
    drawing.tight_layout()
    drawing.savefig(REPORT / "chart.png", dpi=120)
    plt.close(drawing)
