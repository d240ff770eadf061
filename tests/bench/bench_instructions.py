"""Instructions of the engine's sample of 32 and update of 512, as callgrind counts them: the same on a noisy machine.

instructions.json holds what they were when someone last wrote them down: `make bench-instructions ARGS=--write`.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from placed import program

KEPT = Path(__file__).with_name("instructions.json")
TIMES = 100
_TOTAL = re.compile(r"refs:\s+([\d,]+)")


def count(function: str) -> int:
    """instructions of one call"""
    if shutil.which("valgrind") is None:
        pytest.fail("valgrind is not there: apt-get install valgrind")
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", f"--toggle-collect={function}"]
    done = subprocess.run(
        [*command, str(program("instructions"))], capture_output=True, text=True, check=True, timeout=300
    )
    found = _TOTAL.search(done.stderr)
    total = int(found[1].replace(",", "")) if found else 0
    assert total > 0, done.stderr
    return total // TIMES


def test_instructions(request):
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    counts = {function: count(function) for function in ("sample_32", "update_512")}
    print()
    for function, now in counts.items():
        before = kept.get(function)
        change = f"written down: {before:,} ({now / before - 1:+.1%})" if before else "not written down yet"
        print(f"{function}: {now:,} instructions; {change}")
    if request.config.getoption("--write"):
        KEPT.write_text(json.dumps(counts, indent=1) + "\n")
