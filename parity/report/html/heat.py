"""An error map as the paths of an SVG: one path a level, whose colour the page's style sheet decides."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from parity.report.schema import ErrorMapReport
from parity.verdict.error_map import LEVELS, OUTSIDE, WITHIN_LIMIT


@dataclass(frozen=True)
class Heat:
    """What the page draws of an error map.

    Attributes:
        rows, columns: Cells.
        paths: Level and strokes through its cells, from best to worst; what does not count is "out".
        marks: Strokes through the cells over the limit, which carry a mark beside their colour.
        over: The levels over the limit.
        legend: Level and meaning of what there is.
        text: What can be seen, in words.
    """

    rows: int
    columns: int
    row_axis: str
    column_axis: str
    paths: tuple[tuple[str, str], ...]
    marks: str
    over: str
    legend: tuple[tuple[str, str], ...]
    text: str


def heat(found: ErrorMapReport, changes: bool = False) -> Heat:
    """Prepare an error map for drawing; with `changes`, what is above level 0 has changed."""
    present = sorted(set("".join(found.cells)))
    over = "".join(level for level in present if level != OUTSIDE and int(level) > WITHIN_LIMIT)
    rows, columns = len(found.cells), len(found.cells[0])
    return Heat(
        rows=rows,
        columns=columns,
        row_axis=_axis(found.axes[0], found.shape[0], rows),
        column_axis=_axis(found.axes[1], found.shape[1], columns),
        paths=tuple((_css(level), _strokes(found.cells, level)) for level in present),
        marks=_strokes(found.cells, over),
        over=over,
        legend=tuple((_css(level), _meaning(level, changes)) for level in present),
        text=_in_words(found, set(over), "Changed" if changes else "Over the limit"),
    )


def _css(level: str) -> str:
    return "out" if level == OUTSIDE else level


def _strokes(cells: tuple[str, ...], levels: str) -> str:
    """Every run of cells of these levels, as a stroke of an SVG path that is as wide as a cell."""
    parts = []
    for y, line in enumerate(cells):
        x = 0
        for inside, run in groupby(line, levels.__contains__):
            length = len(list(run))
            if inside:
                parts.append(f"M{x} {y}h{length}")
            x += length
    return "".join(parts)


def _meaning(level: str, changes: bool) -> str:
    if level == OUTSIDE:
        return "padding, or left out"
    number = int(level)
    if number == 0:
        return "equal"
    if changes:
        return "changed"
    return f"up to {LEVELS[number]:g}" if number < len(LEVELS) else f"above {LEVELS[-1]:g}, or no number"


def _axis(name: str, size: int, cells: int) -> str:
    each = -(-size // cells)
    binned = f", {each} a cell" if each > 1 else ""
    return f"{name} 0 to {size - 1}{binned}"


def _in_words(found: ErrorMapReport, over: set[str], what: str) -> str:
    """How many cells are over the limit, and the smallest block that holds them all."""
    places = [(y, x) for y, line in enumerate(found.cells) for x, level in enumerate(line) if level in over]
    counted = sum(level != OUTSIDE for line in found.cells for level in line)
    if not places:
        return f"No element of {counted} cells is over its limit."
    spans = []
    for axis, (name, size, cells) in enumerate(
        zip(found.axes, found.shape, (len(found.cells), len(found.cells[0])), strict=True)
    ):
        each = -(-size // cells)
        first, last = min(place[axis] for place in places), max(place[axis] for place in places)
        spans.append(_span(name, first * each, min((last + 1) * each, size) - 1))
    return f"{what}: {len(places)} of {counted} cells, within {' and '.join(spans)}."


def _span(name: str, first: int, last: int) -> str:
    return f"{name} {first}" if first == last else f"{name} {first} to {last}"
