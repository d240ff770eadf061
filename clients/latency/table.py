"""The report as text: the memories side by side, each compared with the first."""

from __future__ import annotations

from collections.abc import Sequence

from netreplay.clients.latency.figures import PERCENTILES, SHARES, Summary, overlap, show_change

_GAP = "  "


def number(value: float | None) -> str:
    """Microseconds to three or four digits; "-" for none."""
    if value is None:
        return "-"
    return f"{value:.{2 if value < 100 else 1 if value < 1000 else 0}f}"


def _spread(summary: Summary) -> str:
    least, most = summary.spread
    return f"{number(least)}..{number(most)}"


def _rows(summaries: Sequence[Summary | None]) -> list[tuple[str, list[str], list[str]]]:
    """Name, a cell per memory, and a comparison per memory but the first."""
    first = summaries[0]
    present = [summary for summary in summaries if summary is not None]
    blocks = max(len(summary.blocks) for summary in present)
    changes, overlaps = [], []
    for other in summaries[1:]:
        both = first is not None and other is not None
        changes.append(show_change(other.figure, first.figure) if both else "")  # type: ignore[union-attr]
        overlaps.append("spreads overlap" if both and overlap(other.spread, first.spread) else "")  # type: ignore[union-attr]
    none = [""] * (len(summaries) - 1)

    def cells(name: str) -> list[str]:
        found = []
        for summary in summaries:
            value = None
            if summary is not None:
                value = summary.percentiles[name] if name in PERCENTILES else getattr(summary, name)
            found.append(number(value))
        return found

    rows = [
        (f"median of {blocks} blocks", cells("figure"), changes),
        ("  their spread", ["-" if s is None else _spread(s) for s in summaries], overlaps),
    ]
    for share in SHARES:
        medians = [None if s is None or s.shares is None else getattr(s.shares, share) for s in summaries]
        rows.append((f"  {share}", [number(median) for median in medians], none))
    rows += [(name, cells(name), none) for name in PERCENTILES]
    rows += [(name, cells(field), none) for name, field in (("min", "least"), ("mean", "mean"), ("max", "most"))]
    rows.append(("count", ["-" if s is None else f"{s.count:,}" for s in summaries], none))
    return rows


def render(labels: Sequence[str], operations: Sequence[tuple[str, str, Sequence[Summary | None]]]) -> str:
    """A table of all operations (name, what one call is, a summary per memory); "" when nothing was measured."""
    against = [f"against {labels[0]}" for _ in labels[1:]]
    sections = []
    for name, size, summaries in operations:
        if any(summary is not None for summary in summaries):
            sections.append((name, size, _rows(summaries)))
    if not sections:
        return ""
    lines: list[list[str]] = []
    titles: dict[int, str] = {}
    for name, size, rows in sections:
        titles[len(lines)] = f"{name} ({size}), microseconds"
        lines.append(["", *_woven(labels, against)])
        lines += [[title, *_woven(cells, notes)] for title, cells, notes in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = []
    for index, line in enumerate(lines):
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        if index in titles:
            if index:
                text.append("")
            text.append(titles[index])
        text.append(_GAP.join([line[0].ljust(widths[0]), *cells]).rstrip())
    return "\n".join(text)


def _woven(cells: Sequence[str], notes: Sequence[str]) -> list[str]:
    """The first memory's cell, then each other's with its note behind it."""
    return [cells[0], *(text for pair in zip(cells[1:], notes, strict=True) for text in pair)]
