"""How much memory a spec takes: defaults of its sizes, and the refusal, with the arithmetic, of what does not fit.

Steps of a store by default: the most that a full table's items hold, plus streams x (window - 1 + in_flight) for the
tails of its streams, plus what leases may pin: leases x window, at most an eighth of what the table's items hold (but
1,024 at least). A table's items hold capacity x stride x 1.125 steps, since windows share steps (the stride of n-step
items is 1), at most capacity x window; always the latter when the remover is not "fifo", as neighbours need not stay
together. Streams by default: as many as fit an eighth of those steps with their tails, 64 at least and 16,384 at most.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from netreplay.errors import NoMemoryError, SpecError
from netreplay.layout import align, row_layout, step_layout
from netreplay.spec import DEFAULT_IN_FLIGHT, MAX_STREAMS, MAX_U32, MIN_STREAMS, Spec, StoreSpec, TableSpec


def store_window(spec: Spec, name: str) -> int:
    """steps of the longest item of any table of the store"""
    return max((table.window.steps for table in spec.tables_of(name).values()), default=1)


def step_stride(step_bytes: int) -> int:
    """Bytes from one step to the next in the engine's memory (nr_arena_stride)."""
    tight, lines = align(step_bytes, 8), align(step_bytes, 64)
    return lines if lines - tight <= tight // 7 else tight


def held_steps(table: TableSpec) -> int:
    """steps that a full table's items hold, when episodes are long"""
    apart = table.remover != "fifo"
    return table.capacity * (table.window.steps if apart else min(table.window.advance, table.window.steps))


def _room(table: TableSpec) -> int:
    """steps that a store has for a full table's items"""
    held = held_steps(table)
    return held + -(-held // 8) if table.remover == "fifo" else held


def _resolve_store(spec: Spec, name: str, store: StoreSpec) -> StoreSpec:
    tables = spec.tables_of(name).values()
    held = max((held_steps(table) for table in tables), default=1)
    window = store_window(spec, name)
    in_flight = store.in_flight if store.in_flight is not None else DEFAULT_IN_FLIGHT
    tail = window - 1 + in_flight
    streams = store.streams
    if streams is None:
        streams = min(MAX_STREAMS, max(MIN_STREAMS, held // 8 // tail))
    steps = store.steps
    if store.bytes is not None:
        steps = store.bytes // step_stride(step_layout(store, name).step_bytes)
    if steps is None:
        pinned = sum(min(t.leases * t.window.steps, max(held_steps(t) // 8, 1024)) for t in tables)
        steps = max((_room(t) for t in tables), default=2) + streams * tail + pinned
    elif steps < tail + window:
        path = f"store.{name}.{'steps' if store.bytes is None else 'bytes'}"
        least = f"{tail + window} (window {window} - 1 + in_flight {in_flight} + window {window})"
        raise SpecError(f"{path}: {steps} is below {least}: not one item would fit", path=path, value=steps)
    if steps > MAX_U32:
        path = f"store.{name}.steps"
        raise SpecError(f"{path}: {steps} is above {MAX_U32}; lower capacity or streams", path=path, value=steps)
    return replace(store, steps=steps, streams=streams, in_flight=in_flight, bytes=None)


def resolve(spec: Spec) -> Spec:
    """The spec with every size filled in. Doing it twice changes nothing."""
    return replace(spec, stores={name: _resolve_store(spec, name, store) for name, store in spec.stores.items()})


def human(size: int) -> str:
    """Bytes for people: "9.1 GB"."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def arithmetic(spec: Spec) -> list[str]:
    """What takes how much, one line each, in words."""
    resolved = resolve(spec)
    lines = []
    for name, store in resolved.stores.items():
        step_bytes = step_layout(store, name).step_bytes
        steps, streams = store.steps or 0, store.streams or 0
        tail = store_window(resolved, name) - 1 + (store.in_flight or 0)
        lines.append(
            f"store {name}: {steps} steps x {step_bytes} B = {human(steps * step_bytes)}, "
            f"of which {streams} streams x {tail} steps = {human(streams * tail * step_bytes)}"
        )
    for name, table in resolved.tables.items():
        row = row_layout(table, step_layout(resolved.stores[table.store]), name)
        lines.append(f"table {name}: {table.capacity} items (rows of {row.row_bytes} B are put together when sampled)")
    for name, entry in resolved.parameters.items():
        lines.append(f"parameters {name}: 2 x {human(entry.max_bytes)}")
    return lines


def step_memory(spec: Spec) -> int:
    """Bytes of steps and parameter buffers alone: a lower bound of what an engine takes."""
    resolved = resolve(spec)
    steps = sum((s.steps or 0) * step_layout(s, n).step_bytes for n, s in resolved.stores.items())
    return steps + sum(2 * p.max_bytes for p in resolved.parameters.values())


def available_memory() -> int | None:
    """Bytes that this process may still take: the least of what the machine and its control group have free."""
    found: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        pass
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            found.append(int(Path(limit).read_text("ascii")) - int(Path(used).read_text("ascii")))
        except (OSError, ValueError):
            continue
    return max(min(found), 0) if found else None


def require(spec: Spec, wanted: int, limit: int | None = None) -> None:
    """NoMemoryError, with the arithmetic, when `wanted` bytes are above the limit (None: the memory available)."""
    allowed = limit if limit is not None else available_memory()
    if allowed is None or wanted <= allowed:
        return
    whose = "the configured limit" if limit is not None else "the memory available"
    lines = "; ".join(arithmetic(spec))
    raise NoMemoryError(
        f"{human(wanted)} is wanted and {whose} is {human(allowed)}: {lines}. Lower capacity, or set steps or streams",
        wanted=wanted,
        allowed=allowed,
    )
