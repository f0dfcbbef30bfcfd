"""The tables of the report, and their place in a document."""

from __future__ import annotations

import math

from tabulate import tabulate

from cases.research_vs_production.measure import Distance, Result, Row, mean, spread
from parity.base.errors import UserError


def marker(weights: str, end: str) -> str:
    """The place where the tables of "initial" or "trained" weights "begin" or "end" in a document."""
    return f"<!-- {weights} weights: {end} -->"


def tables(result: Result, facts: dict[str, str]) -> str:
    """Markdown: facts of the measurement, differences, options."""
    lines = [f"* {name}: {value}" for name, value in facts.items()]
    lines += [
        f"* at the start, the model between differs from research HSTU by {result.start_error:.1g}, relative",
        f"* at the end, it differs from the production STU by {result.end_error:.1g}, relative",
    ]
    columns = ("states", "top 10", "rank")
    differences = [_names(row) + _cells(row.alone) + _cells(row.cumulative) for row in result.rows]
    # A table of Markdown has one row of heads.
    groups = ("", "", "**alone**", "", "", "**with all above**", "", "")
    heads = ("research HSTU", "production STU", *columns, *columns)
    options = [_names(option) + _cells(option.alone) for option in result.options]
    tables = (
        _table(heads, [groups, *differences]),
        _table(("production STU", "with the option", *columns), options),
    )
    return "\n\n".join(["\n".join(lines), *tables]) + "\n"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return tabulate(rows, heads, tablefmt="github", disable_numparse=True)


def _names(row: Row) -> tuple[str, str]:
    return row.difference.research, row.difference.production


def _cells(distances: tuple[Distance, ...]) -> tuple[str, str, str]:
    average = mean(distances)
    return (
        f"{average.states:.3f} ± {_rounded_up(spread(distances)):.3f}",
        f"{average.top:.0%}",
        f"{average.rank:.2f}",
    )


def _rounded_up(number: float) -> float:
    return math.ceil(number * 1000) / 1000


def put_in(document: str, weights: str, measured: str, name: str) -> str:
    """The document with new text between the markers of these weights.

    Raises:
        UserError: a marker is missing, repeated or out of order.
    """
    begin, end = marker(weights, "begin"), marker(weights, "end")
    before, opened, rest = document.partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed or begin in rest or end in after:
        raise UserError("--write", name, f"has not {begin} and {end}, once each", "put them into the file")
    return f"{before}{begin}\n\n{measured}\n{end}{after}"
