"""What a datagram costs the server by kind of request, and the rate of one core that follows, against line rates.

First the protocol server and its engine alone (parse, check, do, answer), then a DPDK port alone (net_null), and the
appliance's whole loop on one (net_ring; the client's work is not counted). All on one core.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
from typing import Any

import pytest
from placed import SERVER_CORE, program

LINE_RATES = {"40 GbE at MTU 1500": 3.25e6, "40 GbE at MTU 9000": 0.55e6}
"""full-size datagrams per second"""
RUNS = 5
"""of the program that measures ports; figures are their medians"""
_HEAD = "{:42}   MTU  checksums   cycles     ns  least to most"
_ROW = re.compile(r"(?P<name>\S.*?)\s+\d+\s+(?P<ns>\d+)\s+(?P<cycles>\d+)\s+(?P<asks>[\d.]+)\s+(?P<answers>[\d.]+)")


def verdict(rate: float, line: str) -> str:
    """How much of a line rate one core does."""
    share = rate / LINE_RATES[line]
    return f"{share:.2f} of {line} ({'met' if share >= 1 else 'MISSED'})"


def test_datagrams_of_the_server():
    command = ["taskset", "-c", str(SERVER_CORE), str(program("bench_server")), "10000"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    rows = [found for line in output.splitlines()[1:] if (found := _ROW.fullmatch(line.strip()))]
    assert rows, output
    print(f"\n{'request: engine and protocol':36}{'cycles':>9}{'ns':>8}  M datagrams/s on one core")
    for row in rows:
        datagrams = max(float(row["asks"]), float(row["answers"]))  # in the direction that has more
        rate = 1e9 * datagrams / float(row["ns"])
        verdicts = ", ".join(verdict(rate, line) for line in LINE_RATES)
        cycles, ns = float(row["cycles"]) / datagrams, float(row["ns"]) / datagrams
        print(f"{row['name']:36}{cycles:9.0f}{ns:8.0f}  {rate / 1e6:.3f}: {verdicts}")


def _run() -> list[dict[str, Any]]:
    measure = program("bench_port", "dpdk", "dpdk_ext/dpdk/tests")
    command = ["taskset", "-c", str(SERVER_CORE), str(measure), "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"bench_port failed: {done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_datagrams_of_a_port():
    """Beside each median the least and the most of the runs; then where the cycles of the median run went."""
    if subprocess.run(["pkg-config", "--exists", "libdpdk >= 22.11"], check=False).returncode != 0:
        pytest.skip("needs libdpdk")
    print(f"\nload before: {os.getloadavg()[0]:.1f}; {RUNS} runs")
    runs = list(zip(*(_run() for _ in range(RUNS)), strict=True))
    assert any("row" in same[0] for same in runs)
    print(_HEAD.format("the port alone (net_null)"))
    for same in runs:
        if "null" in same[0]:
            _print("null", same, "")
    print(_HEAD.format("request: whole loop and port (net_ring)"))
    for same in runs:
        if "row" in same[0]:
            middle = sorted(same, key=lambda run: run["cycles"])[RUNS // 2]
            rest = middle["cycles"] - middle["receive"] - middle["send"]
            rate = 1e9 / middle["ns"]
            line = f"40 GbE at MTU {middle['mtu']}"
            split = f"receive {middle['receive']}, send {middle['send']}, rest {rest}"
            _print("row", same, f"  ({split}) {rate / 1e6:.3f} M/s: {verdict(rate, line)}")


def _print(kind: str, same: tuple[dict[str, Any], ...], what: str) -> None:
    cycles = [run["cycles"] for run in same]
    ns = statistics.median(run["ns"] for run in same)
    first = same[0]
    sums = "software" if first["software"] else "card's"
    span = f"{min(cycles)} to {max(cycles)}"
    print(f"{first[kind]:42}{first['mtu']:6}  {sums:10}{statistics.median(cycles):8.0f}{ns:7.0f}  {span:16}{what}")
