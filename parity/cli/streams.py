"""Streams on the command line: those of `stream`, and the short ones of a plain run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from parity.base.errors import UserError
from parity.base.files import called_in
from parity.base.precision import DEFAULT_PRECISIONS, PRECISIONS, Precision
from parity.case import Case, CaseReference, load_case
from parity.cli.arguments import Arguments, needing_port
from parity.cli.output import print_line
from parity.cli.progress import steps as shown_steps
from parity.execution.commands import Commands
from parity.execution.record import RunnerFailure, Status
from parity.execution.scheduler import Worker
from parity.report.schema import StreamReport

if TYPE_CHECKING:
    from parity.studies.streaming.command import StreamVerdict


def judge_stream(console: Console, arguments: Arguments, steps: int, capacity: int | None) -> int:
    """Judge both sides of one case over a stream, print a line for each, and return the exit code."""
    here, cases = Path.cwd(), arguments.named_cases()
    # A case that is imported may go to another folder.
    weights = arguments.weights and called_in(here, arguments.weights)
    if len(cases) != 1:
        problem = "cases are given, where one is taken"
        raise UserError("stream", len(cases), problem, "give one --case or --model")
    with needing_port():
        from parity.studies.streaming.command import HEADER, judge_streams
    precisions = arguments.precisions() or tuple(DEFAULT_PRECISIONS)
    case = cases[0].with_overrides(seed=arguments.seed)
    verdicts = judge_streams(case, precisions, weights, steps, capacity)
    print_line(console, HEADER)
    return _show(console, verdicts, f"{case.name}, streams")


def judge_small_streams(
    case: Case, precision: Precision, worker: Worker, is_only_case: bool = True
) -> tuple[StreamReport, ...]:
    """Short streams of a case in one precision, for the report of a plain run; none for a case without.

    They run in the process of the port. Its row of the report has the reason where it cannot run. A
    stream that ends without a verdict fails.

    Args:
        case: The case.
        precision: The tested precision.
        worker: The processes of runners.
        is_only_case: Whether the run has no other case: then bad input ends it.

    Raises:
        UserError: Bad input of the only case.
    """
    if not case.has_streams():
        return ()
    port, scheduler = worker.pool.get("tripy", precision), worker.scheduler
    with scheduler.shared():
        try:
            port.request(Commands.start, scheduler.threads_shared)
        except RunnerFailure as failure:
            return () if failure.status is Status.UNAVAILABLE else (_broken(precision, failure),)
        try:
            return port.request(Commands.call, f"{__name__}:small_streams", case.reference, precision.name)
        except RunnerFailure as failure:
            return (_broken(precision, failure),)
        except UserError as error:
            if is_only_case:
                raise
            return (_broken(precision, RunnerFailure(Status.ERROR, str(error))),)


def _broken(precision: Precision, failure: RunnerFailure) -> StreamReport:
    """The report of a stream that ends without a verdict."""
    return StreamReport(
        precision=precision.name,
        side="tripy",
        steps=0,
        items=0,
        cache_margin=math.inf,
        output_margin=math.inf,
        failed="the stream",
        reason=str(failure),
    )


def small_streams(reference: CaseReference, precision: str) -> tuple[StreamReport, ...]:
    """Both sides of a case over a short stream in one precision."""
    from parity.studies.streaming.command import FEW_STEPS, judge_streams

    case = load_case(reference)
    # Half precisions have a cache of the model's width, where a bias reaches its farthest position. A mistake
    # that only a capacity shows is one of positions, and shows in any precision.
    capacity = case.streams().width if PRECISIONS[precision].is_half else None
    verdicts = judge_streams(case, (precision,), None, FEW_STEPS, capacity)
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
