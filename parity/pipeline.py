"""A run from request to report: prepare, collect, judge, assemble, write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity.base.code import Code, changed_code, imported_now, one_state, require_unchanged
from parity.base.precision import PRECISIONS, Precision
from parity.base.process import one_thread
from parity.base.variables import PORTABLE_TF32, kept
from parity.case import Case, load_case
from parity.execution import fork_server
from parity.execution.batches import BatchCollection
from parity.execution.bounds import PreparedRun, prepare_within
from parity.execution.case_files import described, write_prepared
from parity.execution.collect import Progress
from parity.execution.folder import STARTED, RunFolder, going_on, in_use, opened
from parity.execution.manifest import read_manifest, write_manifest
from parity.execution.request import Request
from parity.execution.resuming import check_started, read_started, write_started
from parity.execution.scheduler import Worker, side_by_side
from parity.inputs.arrays import NamedInputs, more_rows
from parity.inputs.prepared import PreparedCase
from parity.report.assemble import assemble
from parity.report.files import read_report, write_again
from parity.report.polygraphy import write_polygraphy
from parity.report.replayed import check_replayed
from parity.report.schema import Report, StreamReport
from parity.verdict.apart import judge_of
from parity.verdict.judging import PrecisionJudge, PrecisionJudgement
from parity.verdict.sensitivity import multiples

JudgesStreams = Callable[[Case, Precision, Worker, bool], Sequence[StreamReport]]
"""Judges short streams of a case in a precision, in a process of a worker; True for the run's only case."""


def run(request: Request, progress: Progress, streams: JudgesStreams = lambda *_: ()) -> Report:
    """Run every case in every precision on every runner and judge them.

    Args:
        request: The request.
        progress: Called after each step.
        streams: Judges streams of a case, where the request is with streams.

    Raises:
        UserError: The request cannot be met, and nothing has been written; or the code changed meanwhile.
    """
    if not any(case.is_live for case in request.cases):
        fork_server.start()
    code = _code(request)
    # Bad input is refused before the first runner starts.
    prepared = prepare_within(request)
    with opened(request.save) as folder:
        if request.save is None:
            return _finish(prepared, folder, progress, streams, code)
        with going_on(folder):
            write_started(request, folder)
            return _finish(prepared, folder, progress, streams, code)


def resume(folder: Path, progress: Progress, streams: JudgesStreams, memory: float | None = None) -> Report:
    """Continue a saved run after an interruption, from the last batch that is done.

    Args:
        folder: Folder of the run.
        progress: Called after each step.
        streams: As in `run`. All of them are judged: they take seconds.
        memory: Largest memory in bytes; None for the run's own.

    Raises:
        UserError: The folder holds no such run, is in use, or its files, inputs or code have changed.
    """
    # A case that is imported may go to another folder.
    root = RunFolder(folder.absolute())
    check_started(root)
    with in_use("resume", root.path, STARTED), going_on(root):
        request = read_started(root)
        if memory is not None:
            request = replace(request, memory=memory)
        fork_server.start()
        code = _code(request)
        return _finish(prepare_within(request), root, progress, streams, code)


@one_thread()
def replay(folder: Path, command: str, progress: Progress) -> Report:
    """Judge a saved run again, from its captures alone. Streams have none: their saved verdicts remain.

    Raises:
        UserError: The folder holds no complete run, or its files are not as the run wrote them.
    """
    root = RunFolder(folder.absolute())
    manifest = read_manifest(root)
    judged = []
    for description in manifest.cases:
        case, case_folder = load_case(description.case), root.case(description.case.name)
        judgements = []
        for precision in description.precisions:
            numbers = [n for n, batch in enumerate(description.batches) if precision in batch.precisions]
            batches = [description.batches[number] for number in numbers]
            recorded = not description.batches[0].purpose
            judge = PrecisionJudge(
                case,
                PRECISIONS[precision],
                case_folder,
                [batch.name for batch in batches],
                recorded,
                description.labels_digests,
                further=max(batch.further for batch in batches),
            )
            judge.judge(map(case_folder.batch, numbers))
            judgements.append(judge.judgement())
            progress(f"{case.name} {precision}")
        judged.append((description, judgements))
    saved = read_report(root.report)
    of_cases = {case.case.name: case.streams for case in saved.cases}
    streams = [of_cases.get(description.case.name, ()) for description, _ in judged]
    report = assemble(judged, command, manifest.runners_asked, streams)
    changed = changed_code(manifest.code)
    check_replayed(saved, report, manifest.environment, root.report, is_same_code=not changed)
    return report.model_copy(update={"environment": manifest.environment, "changed_code": changed})


def _code(request: Request) -> dict[str, Code] | None:
    """The code of a run at its start; None for live models, which run from memory."""
    return None if any(case.is_live for case in request.cases) else imported_now()


def _require_same_code(before: Mapping[str, Code], states: Sequence[Mapping[str, Code]]) -> None:
    """Raise `UserError` if code of the runners is not that of the run's start, or is another one now.

    Args:
        before: The code at the start. This process may have imported more than runners, such as a program,
            and earlier a module of the same name whose file is gone.
        states: The code of each process of a runner, of the moment of its imports.
    """
    ran = one_state(states)
    one_state([ran, {name: before[name] for name in before.keys() & ran.keys()}])
    require_unchanged({name: own for name, own in ran.items() if name in before or name not in sys.modules})


def _finish(
    run: PreparedRun,
    folder: RunFolder,
    progress: Progress,
    streams: JudgesStreams,
    code: Mapping[str, Code] | None,
) -> Report:
    """Run the batches that are not done, judge all of them, and write the report of a saved run.

    Runners import a case's modules by themselves, and coverage reads their files after the run. So their code
    must be ``code``, and stay it.
    """
    request, prepared = run.request, run.cases
    write_prepared(prepared, folder, request.data, request.checkpoint)
    precisions = [PRECISIONS[name] for name in request.precisions]
    states: list[Mapping[str, Code]] = []

    def work(unit: tuple[PreparedCase, Precision | None], worker: Worker) -> Any:
        result = done_by(unit, worker)
        if code is not None:
            # Here too are modules that a port imports when it is built.
            states.extend(worker.pool.code())
        return result

    def done_by(unit: tuple[PreparedCase, Precision | None], worker: Worker) -> Any:
        entry, precision = unit
        if precision is not None:
            return _judged(entry, precision, request, folder, worker, progress)
        if not request.streams:
            return ()
        asked = _of_streams(entry.case, [own.case for own in prepared], precisions)
        return tuple(
            stream for own in asked for stream in streams(entry.case, own, worker, request.has_one_case)
        )

    # Streams come first: they are the longest units of one process. No core waits long for the last unit.
    longest_first = sorted(prepared, key=lambda entry: _length(entry, request), reverse=True)
    # Coarse precisions may need batches with more rows, which nobody knows beforehand.
    coarsest_first = sorted(precisions, key=lambda precision: precision.unit_roundoff, reverse=True)
    pairs = ((entry, precision) for precision in coarsest_first for entry in longest_first)
    units = [*((entry, None) for entry in prepared), *pairs]
    live = [case for case in request.cases if case.is_live]
    # Runners of live models set it in this process, which is the caller's.
    with kept(PORTABLE_TF32):
        results = side_by_side(work, units, folder, request.timeout, bool(live), run.sharing)
    if code is not None:
        _require_same_code(code, states)
    names = ((entry.case.name, precision) for entry, precision in units)
    done = dict(zip(names, results, strict=True))
    of_cases = [done[entry.case.name, None] for entry in prepared]
    by_case = [[done[entry.case.name, precision] for precision in precisions] for entry in prepared]
    more_rows = [
        {judgement.precision: further for judgement, further in judgements} for judgements in by_case
    ]
    descriptions = described(prepared, request.precisions, more_rows)
    judged = [
        (facts, [judgement for judgement, _ in judgements])
        for facts, judgements in zip(descriptions, by_case, strict=True)
    ]
    asked = request.runners if request.runners_asked else ()
    report = assemble(judged, request.command, asked, of_cases, live)
    if request.save is not None:
        # An interrupted run may have left a report.
        for problem in write_again(report, folder.path):
            progress(problem)
        write_manifest(folder, request, report.requested_runners, descriptions)
    return report


def _of_streams(case: Case, cases: Sequence[Case], precisions: Sequence[Precision]) -> Sequence[Precision]:
    """The precisions in which a case's streams are judged: all for the first such case, for the casts.

    The others have the first precision alone: a stream takes a second in each.
    """
    first = next((own for own in cases if own.has_streams()), None)
    return precisions if case is first else precisions[:1]


def _length(prepared: PreparedCase, request: Request) -> tuple[int, int]:
    """A key that orders cases by their expected time: the numbers of runners and of weights."""
    return len(request.runners_of(prepared.case)), len(prepared.weights)


def _judged(
    prepared: PreparedCase,
    precision: Precision,
    request: Request,
    root: RunFolder,
    worker: Worker,
    progress: Progress,
) -> tuple[PrecisionJudgement, list[NamedInputs]]:
    """Run and judge all batches of a case in one precision.

    Returns:
        The verdicts, and the further batches with more rows.
    """
    folder = root.case(prepared.case.name)
    collection = BatchCollection(prepared, precision, request, folder, worker, progress)
    recorded = collection.batches[0].is_recorded
    judge = PrecisionJudge(
        prepared.case,
        precision,
        folder,
        [batch.name for batch in collection.batches],
        recorded,
        prepared.labels_digests,
        judge_of(worker, prepared.case, is_bounded=request.memory is not None),
        keep=request.save is not None,
    )
    judge.judge(collection.collect_all())
    failed = judge.first_failure()
    in_appends = failed is not None and judge.fails_in_appends(failed)
    if failed is not None and (in_appends or not collection.runs_modules_alone(failed)):
        # The model shows a fault in any batch; its modules alone, and the calls of appends, tell the place.
        judge.judge_again(failed, collection.collect_with_modules(failed, in_appends))
    further = [] if recorded else _with_more_rows(prepared, collection, judge)
    judgement = judge.judgement()
    if request.save is not None:
        write_polygraphy(prepared.case, precision, folder, worker)
        progress(f"{prepared.case.name} {precision.name}: ONNX")
    return judgement, further


def _with_more_rows(
    prepared: PreparedCase, collection: BatchCollection, judge: PrecisionJudge
) -> list[NamedInputs]:
    """Draw, run and judge batches with more rows until every check can notice 1 %, within a bound."""
    drawn: list[NamedInputs] = []
    case, typical = prepared.case, prepared.inputs.typical
    times = list(multiples(case.batch_size_of(typical)))
    number = 0
    while number < len(times) and (needed := judge.batches_needed()):
        number = min(number + max(needed.values()), len(times))
        batch = more_rows(case, typical, number, times[number - 1])
        if batch is None:
            break
        place = len(prepared.inputs.batches) + len(drawn)
        judge.add_more_rows(batch, collection.collect_more_rows(place, batch, tuple(needed)))
        drawn.append(batch)
    return drawn
