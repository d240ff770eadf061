"""What a datagram costs the server by kind of request, and the rate of one core that follows, against line rates.

The protocol server and its engine alone (parse, check, do, answer), on one core: what receives and sends is not in it.
"""

from __future__ import annotations

import re
import subprocess

from placed import SERVER_CORE, program

LINE_RATES = {"40 GbE at MTU 1500": 3.25e6, "40 GbE at MTU 9000": 0.55e6}
"""full-size datagrams per second"""
_ROW = re.compile(r"(?P<name>\S.*?)\s+\d+\s+(?P<ns>\d+)\s+(?P<cycles>\d+)\s+(?P<asks>[\d.]+)\s+(?P<answers>[\d.]+)")


def test_datagrams_of_the_server():
    command = ["taskset", "-c", str(SERVER_CORE), str(program("bench_server")), "10000"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    rows = [found for line in output.splitlines()[1:] if (found := _ROW.fullmatch(line.strip()))]
    assert rows, output
    print(f"\n{'request':36}{'cycles':>9}{'ns':>8}  M datagrams/s on one core")
    for row in rows:
        datagrams = max(float(row["asks"]), float(row["answers"]))  # in the direction that has more
        rate = 1e9 * datagrams / float(row["ns"])
        verdicts = ", ".join(
            f"{rate / line:.2f} of {name} ({'met' if rate >= line else 'MISSED'})" for name, line in LINE_RATES.items()
        )
        cycles, ns = float(row["cycles"]) / datagrams, float(row["ns"]) / datagrams
        print(f"{row['name']:36}{cycles:9.0f}{ns:8.0f}  {rate / 1e6:.3f}: {verdicts}")
