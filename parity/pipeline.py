"""A run from request to report: the one function behind `run_parity.py`."""

from __future__ import annotations

import datetime
import json
import queue
import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from parity.base.environment import environment
from parity.base.errors import UserError
from parity.base.files import write_new
from parity.base.precision import PRECISIONS, Precision
from parity.base.process import one_thread
from parity.case import Case, CaseReference, load_case
from parity.execution.collect import Progress, collect, write_inputs
from parity.execution.commands import Commands
from parity.execution.folder import BatchFolder, CaseFolder, RunFolder, opened
from parity.execution.record import ORACLE, REFERENCE, RunnerFailure, Status
from parity.execution.request import Batch, Request
from parity.execution.resuming import read_started, write_started
from parity.execution.scheduler import RunnerPool, Scheduler
from parity.inputs import weights
from parity.inputs.arrays import RunInputs, make_inputs, poisoned_inputs
from parity.report.assemble import precision_report
from parity.report.files import write_outputs
from parity.report.schema import CaseReport, PrecisionReport, Report
from parity.runners.forms import FORMS
from parity.timing.roofline import write_limits
from parity.verdict.judging import PrecisionJudge

_WRITE_POLYGRAPHY = "parity.report.polygraphy:write"
"""Import path for a runner's process. The export needs much memory, and Polygraphy may be missing."""


def run(request: Request, progress: Progress) -> Report:
    """Run every case in every precision on every runner and judge them.

    Raises:
        UserError: The request cannot be met; nothing has been written.
    """
    names = [case.name for case in request.cases]
    for name in names:
        if names.count(name) > 1:
            raise UserError("--case", name, "is the name of two cases", "give each a name of its own")
    # Bad input is refused before the first runner starts.
    prepared = _prepared(request)
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
    return _finish(_prepared(request), request, RunFolder(folder), progress)


def _prepared(request: Request) -> list[_Prepared]:
    """Every case with its inputs and weights. Cases of one class share the content of the data file."""
    read: dict[type[Case], Any] = {}
    if request.data is not None:
        for case in request.cases:
            if type(case) not in read:
                read[type(case)] = case.read(request.data)
    return [_prepare(case, request, read.get(type(case))) for case in request.cases]


def _finish(prepared: list[_Prepared], request: Request, folder: RunFolder, progress: Progress) -> Report:
    """Run the batches that are not done, judge all of them, and write the report of a saved run."""
    cases = _run_cases(prepared, request, folder, progress)
    report = _report(cases, request.command, request.runners if request.runners_asked else ())
    if request.save is not None:
        _write_json(folder.request, {"runners_asked": report.requested_runners})
        write_outputs(report, folder.path)
    return report


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_new(path, (json.dumps(content) + "\n").encode())


@one_thread()
def replay(folder: Path, command: str, progress: Progress) -> Report:
    """Judge a saved run again, from its captures alone.

    Raises:
        UserError: The folder holds no complete run, or a file is missing or damaged.
    """
    try:
        asked = tuple(json.loads(RunFolder(folder).request.read_text())["runners_asked"])
        saved = [
            (case_folder, _Description(**json.loads(case_folder.description.read_text())))
            for case_folder in RunFolder(folder).complete_cases()
        ]
        if not saved:
            raise FileNotFoundError("no complete case")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            "--replay", str(folder), "holds no complete saved run", "give the folder of a run with --save"
        ) from error
    cases = []
    for case_folder, description in saved:
        case = load_case(CaseReference(**description.case))
        batches = [case_folder.batch(number) for number in range(len(description.inputs_digests))]
        precisions = []
        for precision in description.precisions:
            labels = description.labels_digests
            judge = PrecisionJudge(case, PRECISIONS[precision], case_folder, labels)
            for batch in batches:
                judge.add(batch)
            precisions.append(precision_report(judge.judgement()))
            progress(f"{case.name} {precision}")
        cases.append((description.position, _case_report(case, description, tuple(precisions))))
    ordered = tuple(report for _, report in sorted(cases, key=lambda item: item[0]))
    return _report(ordered, command, asked)


@dataclass(frozen=True)
class _Description:
    """The facts about a case that a replay needs besides its captures."""

    case: dict[str, Any]
    position: int
    precisions: list[str]
    source: str
    weights_source: str
    weights_digest: str
    inputs_digests: list[str]
    counts: dict[str, int]
    labels_digests: list[str]

    @classmethod
    def of(cls, prepared: _Prepared, precisions: Iterable[str]) -> _Description:
        return cls(
            case=prepared.case.reference.model_dump(),
            position=prepared.position,
            precisions=list(precisions),
            source=prepared.data.source,
            weights_source=prepared.weights_source,
            weights_digest=weights.digest(prepared.weights),
            inputs_digests=[inputs.digest for inputs in prepared.data.batches],
            counts=dict(prepared.data.counts),
            labels_digests=prepared.labels_digests,
        )


@dataclass(frozen=True)
class _Prepared:
    case: Case
    position: int
    data: RunInputs
    weights: Mapping[str, torch.Tensor]
    weights_source: str

    @property
    def labels_digests(self) -> list[str]:
        return [labels.digest for labels in self.data.labels]


def _prepare(case: Case, request: Request, data: Any) -> _Prepared:
    inputs = make_inputs(case, data)
    tensors, weights_source = weights.case_weights(case, request.checkpoint)
    return _Prepared(case, request.cases.index(case), inputs, tensors, weights_source)


def _run_cases(
    cases: list[_Prepared], request: Request, root: RunFolder, progress: Progress
) -> tuple[CaseReport, ...]:
    """Run and judge every case in every precision, as many pairs side by side as there are workers."""
    for prepared in cases:
        folder = root.case(prepared.case.name)
        weights.export(prepared.weights, folder.weights)
        for number, inputs in enumerate(prepared.data.batches):
            poisoned = poisoned_inputs(prepared.case, inputs)
            labels = prepared.data.labels[number] if prepared.data.labels else None
            write_inputs(inputs, poisoned, folder.batch(number), labels)
    scheduler = Scheduler()
    free: queue.SimpleQueue[RunnerPool] = queue.SimpleQueue()
    pools = [RunnerPool(root.worker(number), request.timeout) for number in range(scheduler.workers)]
    for pool in pools:
        free.put(pool)

    def work(prepared: _Prepared, name: str) -> PrecisionReport:
        pool = free.get()
        try:
            return _run_precision(prepared, PRECISIONS[name], request, root, pool, scheduler, progress)
        finally:
            free.put(pool)

    units = [(prepared, name) for prepared in cases for name in request.precisions]
    try:
        with one_thread(), ThreadPoolExecutor(max_workers=scheduler.workers) as threads:
            results = list(threads.map(lambda unit: work(*unit), units))
    finally:
        for pool in pools:
            pool.stop()
    reports = []
    for prepared in cases:
        precisions = tuple(
            result for (unit, _), result in zip(units, results, strict=True) if unit is prepared
        )
        description = _Description.of(prepared, request.precisions)
        _write_json(root.case(prepared.case.name).description, description.__dict__)
        reports.append(_case_report(prepared.case, description, precisions))
    return tuple(reports)


def _run_precision(
    prepared: _Prepared,
    precision: Precision,
    request: Request,
    root: RunFolder,
    pool: RunnerPool,
    scheduler: Scheduler,
    progress: Progress,
) -> PrecisionReport:
    """Run all batches of a case in one precision, on models that are loaded once."""
    folder = root.case(prepared.case.name)
    judge = PrecisionJudge(prepared.case, precision, folder, prepared.labels_digests)

    def judge_batch(batch: BatchFolder) -> None:
        judge.add(batch)
        if request.save is None:
            shutil.rmtree(batch.precision(precision.name).path)

    # One batch is judged while the runners run the next one.
    with ThreadPoolExecutor(max_workers=1) as judging:
        judged: Future[None] | None = None
        for number in range(len(prepared.data.batches)):
            batch = folder.batch(number)
            result = batch.precision(precision.name)
            if not result.record.exists():
                # An interrupted run may leave a part of a result.
                shutil.rmtree(result.path, ignore_errors=True)
                if number == 0:
                    write_limits(prepared.case, precision, prepared.data.batches[number], result.roofline)
                collect(
                    Batch(prepared.case, precision, batch, folder.weights),
                    _runners_of(prepared.case, request),
                    pool,
                    scheduler,
                    progress,
                    timed=number == 0,
                    profiles=request.profile if number == 0 else None,
                )
            if judged is not None:
                judged.result()
            judged = judging.submit(judge_batch, batch)
        if judged is not None:
            judged.result()
    if request.save is not None:
        write_polygraphy(prepared.case, precision, folder, pool, scheduler)
        progress(f"{prepared.case.name} {precision.name}: ONNX")
    return precision_report(judge.judgement())


def write_polygraphy(
    case: Case, precision: Precision, folder: CaseFolder, pool: RunnerPool, scheduler: Scheduler
) -> None:
    """Save the files for `polygraphy run`, or the reason for their absence.

    Args:
        case: A case with complete batches in this precision.
        precision: The precision.
        folder: Folder of the case.
        pool: Runner processes.
        scheduler: The scheduler of the machine.
    """
    reference = pool.get(REFERENCE, precision)
    try:
        with scheduler.shared():
            reference.request(Commands.call, _WRITE_POLYGRAPHY, case.reference, precision, folder)
    except RunnerFailure as failure:
        readme = folder.onnx(precision.name) / "README.txt"
        readme.parent.mkdir(parents=True, exist_ok=True)
        readme.write_text(f"No ONNX model and no files for Polygraphy, or not all of them: {failure}\n")


def _runners_of(case: Case, request: Request) -> tuple[str, ...]:
    """The requested runners; without a request, the default ones that the case has a form for."""
    return tuple(
        name
        for name in request.runners
        if request.runners_asked or name not in FORMS or FORMS[name] in case.forms
    )


def _case_report(
    case: Case, description: _Description, precisions: tuple[PrecisionReport, ...]
) -> CaseReport:
    return CaseReport(
        case=case.reference,
        source=description.source,
        weights_source=description.weights_source,
        weights_digest=description.weights_digest,
        inputs_digests=tuple(description.inputs_digests),
        labels_digests=tuple(description.labels_digests),
        batches=len(description.inputs_digests),
        counts=description.counts,
        precisions=precisions,
    )


def _report(cases: tuple[CaseReport, ...], command: str, asked: tuple[str, ...]) -> Report:
    report = Report(
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=command,
        environment=environment(),
        requested_runners=asked,
        cases=cases,
        exit_code=0,
    )
    return report.model_copy(update={"exit_code": _exit_code(report)})


def _exit_code(report: Report) -> int:
    """0 all pass; 1 a verdict or a runner failed, or is INSENSITIVE; 2 a runner asked for cannot run here."""
    entries = [entry for _, _, entry in report.runner_reports()]
    harmless = (Status.OK, Status.UNAVAILABLE, Status.BUILT)
    if any(entry.verdict in ("FAIL", "INSENSITIVE") or entry.status not in harmless for entry in entries):
        return 1
    needed = {*report.requested_runners, REFERENCE, ORACLE}
    if any(entry.status == Status.UNAVAILABLE.value and entry.runner in needed for entry in entries):
        return 2
    # A run without a judgement proves only that its engines can be built.
    judged = [
        entry
        for entry in entries
        if entry.status == Status.BUILT or (entry.verdict == "PASS" and entry.runner != REFERENCE)
    ]
    return 0 if judged else 1
