"""An error map as the paths of an SVG: one path a level, whose colour the page's style sheet decides."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from parity.report.schema_modules import ErrorMapReport
from parity.verdict.error_map import LEVELS, OUTSIDE, WITHIN_LIMIT


@dataclass(frozen=True)
class Heat:
    """The drawing of an error map.

    Attributes:
        rows, columns: Numbers of cells.
        paths: Level and strokes through its cells, from best to worst; "out" for cells without elements.
        marks: Strokes through the cells over the limit, which have a mark beside their colour.
        over: The levels over the limit.
        legend: Level and meaning of each level in the map.
        text: The content in words.
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


def heat(error_map: ErrorMapReport, changes: bool = False) -> Heat:
    """Prepare an error map for drawing.

    Args:
        error_map: The map.
        changes: Whether levels above 0 mean changed elements in place of errors.
    """
    present = sorted(set("".join(error_map.cells)))
    over = "".join(level for level in present if level != OUTSIDE and int(level) > WITHIN_LIMIT)
    rows, columns = len(error_map.cells), len(error_map.cells[0])
    return Heat(
        rows=rows,
        columns=columns,
        row_axis=_axis(error_map.axes[0], error_map.shape[0], rows),
        column_axis=_axis(error_map.axes[1], error_map.shape[1], columns),
        paths=tuple((_css(level), _strokes(error_map.cells, level)) for level in present),
        marks=_strokes(error_map.cells, over),
        over=over,
        legend=tuple((_css(level), _meaning(level, changes)) for level in present),
        text=_in_words(error_map, set(over), "Changed" if changes else "Over the limit"),
    )


def _css(level: str) -> str:
    return "out" if level == OUTSIDE else level


def _strokes(cells: tuple[str, ...], levels: str) -> str:
    """Each run of cells of these levels as a stroke of an SVG path, one cell wide."""
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
    per_cell = -(-size // cells)
    binned = f", {per_cell} a cell" if per_cell > 1 else ""
    return f"{name} 0 to {size - 1}{binned}"


def _in_words(error_map: ErrorMapReport, over: set[str], what: str) -> str:
    """The number of cells over the limit, and the smallest block that holds them."""
    places = [
        (y, x) for y, line in enumerate(error_map.cells) for x, level in enumerate(line) if level in over
    ]
    counted = sum(level != OUTSIDE for line in error_map.cells for level in line)
    if not places:
        return f"No element of {counted} cells is over its limit."
    spans = []
    for axis, (name, size, cells) in enumerate(
        zip(error_map.axes, error_map.shape, (len(error_map.cells), len(error_map.cells[0])), strict=True)
    ):
        per_cell = -(-size // cells)
        first, last = min(place[axis] for place in places), max(place[axis] for place in places)
        spans.append(_span(name, first * per_cell, min((last + 1) * per_cell, size) - 1))
    return f"{what}: {len(places)} of {counted} cells, within {' and '.join(spans)}."


def _span(name: str, first: int, last: int) -> str:
    return f"{name} {first}" if first == last else f"{name} {first} to {last}"
