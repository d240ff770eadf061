"""Measuring: all memories in turns, block by block, so that a change of the machine's state hits all alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from netreplay.clients.latency.figures import Block, Series
from netreplay.clients.latency.subject import Subject

LEAST_BLOCKS = 5
_SECONDS = 10.0  # that a run lasts when nobody says how many rounds
_LEAST_ROUNDS, _MOST_ROUNDS = 200, 20_000
_WARM = 10  # calls before each block that are not counted: the memory before it has taken the caches
_TRIAL = 40  # calls that say how long one takes

Progress = Callable[[str], None]
Results = dict[str, list[Series]]
"""by operation, a series per memory"""


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's collector runs between blocks, not in the middle of a call."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def run_block(subject: Subject, operation: str, rounds: int, warm: int = _WARM) -> Block:
    """So many calls behind one another; what they need is made before."""
    call, arguments = subject.prepare(operation, warm + rounds)
    block = Block(*(np.empty(rounds, np.int64) for _ in range(3)))
    total, answered, serving = block
    clock, answers = time.perf_counter_ns, subject.answers
    with _no_collection():
        for argument in arguments[:warm]:
            call(argument)
        answers_before, serving_before = answers()
        for i, argument in enumerate(arguments[warm:]):
            begin = clock()
            call(argument)
            end = clock()
            answers_now, serving_now = answers()
            total[i] = end - begin
            answered[i] = answers_now - answers_before
            serving[i] = serving_now - serving_before
            answers_before, serving_before = answers_now, serving_now
    return block


def choose_rounds(subjects: Sequence[Subject], operations: Sequence[str], blocks: int) -> dict[str, int]:
    """Rounds of each operation such that all of them take about ten seconds, each as long as the others."""
    rounds: dict[str, int] = {}
    for operation in operations:
        seconds = 0.0
        for subject in subjects:
            run_block(subject, operation, _TRIAL // 2, 0)
            begin = time.perf_counter()
            run_block(subject, operation, _TRIAL, 0)
            seconds += (time.perf_counter() - begin) / _TRIAL
        fitting = int(_SECONDS / len(operations) / seconds)
        rounds[operation] = max(_LEAST_ROUNDS, min(_MOST_ROUNDS, fitting))
    return {operation: split(count, blocks)[0] * blocks for operation, count in rounds.items()}


def split(rounds: int, blocks: int) -> list[int]:
    """Rounds of each block, the first ones one more where it does not come out even."""
    return [rounds // blocks + (i < rounds % blocks) for i in range(blocks)]


def measure(
    subjects: Sequence[Subject], rounds: dict[str, int], blocks: int, results: Results, progress: Progress
) -> None:
    """Adds to `results` block by block: what is there when it is interrupted is whole.

    In every block each operation is called on one memory after the other, another one first each time.
    """
    parts = {operation: split(count, blocks) for operation, count in rounds.items()}
    for block in range(blocks):
        order = [(block + i) % len(subjects) for i in range(len(subjects))]
        for operation, counts in parts.items():
            progress(f"block {block + 1} of {blocks}: {operation}")
            gc.collect()
            measured = {index: run_block(subjects[index], operation, counts[block]) for index in order}
            for index, found in measured.items():
                results[operation][index].blocks.append(found)
