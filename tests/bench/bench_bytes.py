"""Bytes per second with Atari-size experience, C clients: batches of 512 stacks sampled, frames inserted.

Beside a memcpy of the same pieces within one thread, and the kernel's UDP and TCP under the same server.
"""

from __future__ import annotations

import statistics
from collections import defaultdict

import pytest
from placed import by_state, json_lines, two_cores

BLOCKS, BATCH, STEPS = 9, 512, 50_000
TARGET = 0.5


@pytest.fixture(scope="module")
def figures():
    two_cores()
    rates = defaultdict(list)
    lines = defaultdict(list)
    for found in json_lines("throughput", BLOCKS, BATCH, STEPS):
        rates[found["call"], found["path"]].append(found["gbps"])
        if found["call"] == "sample":
            lines[found["block"]].append(found["line_ns"])
    return rates, [statistics.median(block) for block in lines.values()]


@pytest.mark.parametrize("call", ["sample", "insert"])
def test_bytes(figures, call):
    rates, lines = figures
    vhost = rates[call, "vhost"]
    print(f"\n{call}, GB/s by block; line's round trip {statistics.median(lines):.0f} ns")
    for path in ("memcpy", "vhost", "udp", "tcp"):
        blocks = " ".join(f"{rate:.2f}" for rate in rates[call, path])
        print(f"  {path:7} median {statistics.median(rates[call, path]):.2f}   {blocks}")
    for other, target in (("memcpy", TARGET), ("udp", 1.0), ("tcp", 1.0)):
        ratios = [mine / its for mine, its in zip(vhost, rates[call, other], strict=True)]
        ratio = statistics.median(ratios)
        met = ratio >= target if other == "memcpy" else ratio > target
        print(
            f"  {call}: vhost is {ratio:.2f} of {other} ({'>=' if other == 'memcpy' else '>'} {target}): "
            f"{'met' if met else 'MISSED'}; {by_state(lines, ratios, '.2f')}"
        )
