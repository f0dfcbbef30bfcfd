"""A run from request to report: prepare, collect, judge, assemble, write."""

from __future__ import annotations

from pathlib import Path

from parity.base.precision import PRECISIONS, Precision
from parity.base.process import one_thread
from parity.case import load_case
from parity.execution import fork_server
from parity.execution.batches import BatchCollection
from parity.execution.case_files import (
    read_saved,
    write_descriptions,
    write_prepared,
    write_runners_asked,
)
from parity.execution.collect import Progress
from parity.execution.folder import RunFolder, opened
from parity.execution.request import Request
from parity.execution.resuming import read_started, write_started
from parity.execution.scheduler import Worker, side_by_side
from parity.inputs.arrays import batches_in
from parity.inputs.prepared import PreparedCase, prepare
from parity.report.assemble import assemble
from parity.report.files import write_outputs
from parity.report.polygraphy import write_polygraphy
from parity.report.schema import Report
from parity.verdict.judging import PrecisionJudge, PrecisionJudgement


def run(request: Request, progress: Progress) -> Report:
    """Run every case in every precision on every runner and judge them.

    Raises:
        UserError: The request cannot be met; nothing has been written.
    """
    fork_server.start()
    # Bad input is refused before the first runner starts.
    prepared = prepare(request.cases, request.data, request.checkpoint)
    with opened(request.save) as folder:
        if request.save is not None:
            write_started(request, folder)
        return _finish(prepared, request, folder, progress)


def resume(folder: Path, progress: Progress) -> Report:
    """Continue a saved run after an interruption, from the last batch that is done.

    Raises:
        UserError: The folder holds no such run, or its inputs have changed.
    """
    request = read_started(RunFolder(folder))
    fork_server.start()
    prepared = prepare(request.cases, request.data, request.checkpoint)
    return _finish(prepared, request, RunFolder(folder), progress)


@one_thread()
def replay(folder: Path, command: str, progress: Progress) -> Report:
    """Judge a saved run again, from its captures alone.

    Raises:
        UserError: The folder holds no complete run, or a file is missing or damaged.
    """
    saved = read_saved(RunFolder(folder))
    judged = []
    for case_folder, description in saved.cases:
        case = load_case(description.case)
        judgements = []
        for precision in description.precisions:
            batches = batches_in(description.batches, precision, description.precisions)
            names = [batch.name for batch in batches]
            judge = PrecisionJudge(
                case, PRECISIONS[precision], case_folder, names, description.labels_digests
            )
            judge.judge(map(case_folder.batch, range(len(names))))
            judgements.append(judge.judgement())
            progress(f"{case.name} {precision}")
        judged.append((description, judgements))
    return assemble(judged, command, saved.runners_asked)


def _finish(prepared: list[PreparedCase], request: Request, folder: RunFolder, progress: Progress) -> Report:
    """Run the batches that are not done, judge all of them, and write the report of a saved run."""
    write_prepared(prepared, folder)

    def work(unit: tuple[PreparedCase, Precision], worker: Worker) -> PrecisionJudgement:
        return _judged(*unit, request, folder, worker, progress)

    units = [(case, PRECISIONS[name]) for case in prepared for name in request.precisions]
    judgements = iter(side_by_side(work, units, folder, request.timeout))
    descriptions = write_descriptions(prepared, request.precisions, folder)
    judged = [(facts, [next(judgements) for _ in request.precisions]) for facts in descriptions]
    report = assemble(judged, request.command, request.runners if request.runners_asked else ())
    if request.save is not None:
        write_runners_asked(report.requested_runners, folder)
        write_outputs(report, folder.path)
    return report


def _judged(
    prepared: PreparedCase,
    precision: Precision,
    request: Request,
    root: RunFolder,
    worker: Worker,
    progress: Progress,
) -> PrecisionJudgement:
    """Run and judge all batches of a case in one precision."""
    folder = root.case(prepared.case.name)
    collection = BatchCollection(prepared, precision, request, folder, worker, progress)
    names = [batch.name for batch in prepared.inputs.batches]
    judge = PrecisionJudge(prepared.case, precision, folder, names, prepared.labels_digests)
    keep = request.save is not None
    judge.judge(collection.collect_all(), keep)
    failed = judge.first_failure()
    if failed is not None and not collection.runs_modules_alone(failed):
        # The model shows a fault in any batch; its modules alone tell the place.
        judge.judge_again(failed, collection.collect_with_modules(failed), keep)
    judgement = judge.judgement()
    if request.save is not None:
        write_polygraphy(prepared.case, precision, folder, worker)
        progress(f"{prepared.case.name} {precision.name}: ONNX")
    return judgement
