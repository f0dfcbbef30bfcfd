"""Streams on the command line: those of `stream`, and the short ones of a plain run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console

from parity.base.errors import UserError
from parity.base.precision import DEFAULT_PRECISIONS
from parity.case import Case
from parity.cli.arguments import Arguments
from parity.cli.output import print_line
from parity.cli.progress import steps as shown_steps
from parity.report.schema import StreamReport
from parity.runners import Unavailable

if TYPE_CHECKING:
    from parity.studies.streaming.command import StreamVerdict

_FEW_STEPS = 6
"""Appends of the short streams of a plain run."""


def judge_stream(console: Console, arguments: Arguments, steps: int, capacity: int | None) -> int:
    """Judge both sides of one case over a stream, print a line for each, and return the exit code."""
    cases = arguments.named_cases()
    if len(cases) != 1:
        raise UserError("stream", f"with {len(cases)} cases", "is for one case", "give one --case or --model")
    try:
        from parity.studies.streaming.command import HEADER, judge_streams
    except Unavailable as error:
        raise UserError("runner", "tripy", f"is unavailable: {error}", "run where the port can") from error
    precisions = arguments.precisions() or tuple(DEFAULT_PRECISIONS)
    verdicts = judge_streams(cases[0], precisions, arguments.weights, steps, capacity, arguments.seed or 0)
    print_line(console, HEADER)
    return _show(console, verdicts, f"{cases[0].name}, streams")


def judge_small_streams(case: Case, precision: str) -> tuple[StreamReport, ...]:
    """Short streams of a case in one precision, for the report of a plain run; none for a case without.

    The port's row of the report has the reason where the port cannot run.
    """
    try:
        from parity.studies.streaming.command import judge_streams

        case.streams()
    except (Unavailable, UserError):
        return ()
    verdicts = judge_streams(case, (precision,), None, _FEW_STEPS, None, case.seed)
    return tuple(verdict.report() for verdict in verdicts)


def _show(console: Console, verdicts: Iterable[StreamVerdict], title: str) -> int:
    """Print a line for each side, and return the exit code."""
    passed = True
    with shown_steps() as advance:
        for verdict in verdicts:
            print_line(console, verdict.line())
            advance(f"{title} {verdict.precision}: {verdict.side}")
            passed = passed and verdict.passed
    return int(not passed)
