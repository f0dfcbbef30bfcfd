"""A run from request to report: the one function behind `run_parity.py`."""

from __future__ import annotations

import contextlib
import datetime
import json
import queue
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from configs import CaseConfig, case_from_json
from parity import judging, weights
from parity.collect import ORACLE, REFERENCE, Progress, collect, write_inputs
from parity.environment import environment
from parity.errors import UserError
from parity.families import get_family
from parity.families.base import Batches
from parity.inputs import CaseInputs
from parity.machine import Machine, Runners
from parity.precision import PRECISIONS, Precision
from parity.report import CaseReport, PrecisionReport, Report, RunnerReport, write_report
from parity.worker import Status

POISON_SEED = 1


@dataclass(frozen=True)
class Request:
    """What the user asked for, every name checked.

    Attributes:
        cases: Cases to run.
        precisions: Names in `PRECISIONS`.
        runners: Runners to judge; the reference and the oracle always run.
        runners_asked: Whether the user named them: then one that is unavailable is an error.
        data: A file of recorded data in place of synthetic input.
        checkpoint: Trained weights in place of the sensitive initial ones.
        save: Folder that keeps everything, or None.
        limit: Seconds that one step of one runner may take.
        command: The command line, for the report.
    """

    cases: tuple[CaseConfig, ...]
    precisions: tuple[str, ...]
    runners: tuple[str, ...]
    runners_asked: bool
    data: Path | None
    checkpoint: Path | None
    save: Path | None
    limit: float
    command: str


def run(request: Request, progress: Progress) -> Report:
    """Run every case in every precision on every runner and judge them.

    Raises:
        UserError: Something given cannot be used; nothing has been written then.
    """
    names = [case.name for case in request.cases]
    for name in names:
        if names.count(name) > 1:
            raise UserError("--case", name, "is the name of two cases", "give each a name of its own")
    # All bad input is found before the first runner starts.
    read: dict[str, Any] = {}
    if request.data is not None:
        for family in dict.fromkeys(case.family for case in request.cases):
            read[family] = get_family(family).read(request.data)
    prepared = [_prepare(case, request, read.get(case.family)) for case in request.cases]
    with _folder(request.save) as folder:
        cases = _run_cases(prepared, request, folder, progress)
        report = _report(cases, request.command, request.runners if request.runners_asked else ())
        if request.save:
            (folder / "request.json").write_text(json.dumps({"runners_asked": report.requested_runners}))
            write_report(report, folder / "report.json")
    return report


def replay(folder: Path, command: str, progress: Progress) -> Report:
    """Judge a saved run again, from its captures alone.

    Raises:
        UserError: The folder holds no run that is complete, or a file of it is missing or damaged.
    """
    try:
        asked = tuple(json.loads((folder / "request.json").read_text())["runners_asked"])
        saved = [
            (path.parent, _Description(**json.loads(path.read_text())))
            for path in sorted(folder.glob("*/case.json"))
        ]
        if not saved:
            raise FileNotFoundError("case.json")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            "--replay", str(folder), "holds no complete saved run", "give the folder of a run with --save"
        ) from error
    cases = []
    for case_folder, description in saved:
        case = case_from_json(description.case)
        batches = [_batch_folder(case_folder, number) for number in range(len(description.inputs_digests))]
        precisions = []
        for precision in description.precisions:
            judged = [judging.judge_batch(case, batch / precision, n) for n, batch in enumerate(batches)]
            precisions.append(PrecisionReport(precision=precision, runners=judging.merge_batches(judged)))
            progress(f"{case.name} {precision}")
        cases.append((description.position, _case_report(case, description, tuple(precisions))))
    ordered = tuple(report for _, report in sorted(cases, key=lambda item: item[0]))
    return _report(ordered, command, asked)


@dataclass(frozen=True)
class _Description:
    """What a replay needs to know of a case besides its captures."""

    case: str
    position: int
    precisions: list[str]
    source: str
    weights_source: str
    weights_digest: str
    inputs_digests: list[str]
    counts: dict[str, int]

    @classmethod
    def of(cls, prepared: _Prepared, precisions: Iterable[str]) -> _Description:
        return cls(
            case=prepared.case.model_dump_json(),
            position=prepared.position,
            precisions=list(precisions),
            source=prepared.source,
            weights_source=prepared.weights_source,
            weights_digest=weights.digest(prepared.weights),
            inputs_digests=[inputs.digest for inputs in prepared.batches],
            counts=prepared.counts,
        )


@dataclass(frozen=True)
class _Prepared:
    case: CaseConfig
    position: int
    batches: list[CaseInputs]
    source: str
    counts: dict[str, int]
    weights: Mapping[str, torch.Tensor]
    weights_source: str


def _prepare(case: CaseConfig, request: Request, data: Any) -> _Prepared:
    family = get_family(case.family)
    batches: Batches = family.synthetic(case) if data is None else family.recorded(case, data)
    for inputs in batches.inputs:
        family.validate(inputs, case)
    model = family.build_reference(case.model, "dense")
    if request.checkpoint is None:
        tensors, weights_source = (
            weights.initial_weights(model, case.input.seed),
            f"initial, seed {case.input.seed}",
        )
    else:
        expected = weights.layout(model.state_dict())
        tensors, weights_source = (
            weights.load_checkpoint(request.checkpoint, expected),
            str(request.checkpoint),
        )
    position = request.cases.index(case)
    return _Prepared(case, position, batches.inputs, batches.source, batches.counts, tensors, weights_source)


def _run_cases(
    prepared: list[_Prepared], request: Request, root: Path, progress: Progress
) -> tuple[CaseReport, ...]:
    """Every case in every precision, a few of these pairs side by side."""
    for each in prepared:
        folder = root / each.case.name
        weights.export(each.weights, folder / "weights")
        for number, inputs in enumerate(each.batches):
            poisoned = get_family(each.case.family).poison(inputs, POISON_SEED)
            write_inputs(inputs, poisoned, _batch_folder(folder, number))
    machine = Machine()
    free: queue.SimpleQueue[Runners] = queue.SimpleQueue()
    lanes = [Runners(root / f"lane_{number}", request.limit) for number in range(machine.lanes)]
    for lane in lanes:
        free.put(lane)

    def work(each: _Prepared, name: str) -> tuple[RunnerReport, ...]:
        runners = free.get()
        try:
            return _run_precision(each, PRECISIONS[name], request, root, runners, machine, progress)
        finally:
            free.put(runners)

    units = [(each, name) for each in prepared for name in request.precisions]
    try:
        with ThreadPoolExecutor(max_workers=machine.lanes) as pool:
            results = list(pool.map(lambda unit: work(*unit), units))
    finally:
        for lane in lanes:
            lane.stop()
    reports = []
    for each in prepared:
        precisions = tuple(
            PrecisionReport(precision=name, runners=runners)
            for (unit, name), runners in zip(units, results, strict=True)
            if unit is each
        )
        description = _Description.of(each, request.precisions)
        (root / each.case.name / "case.json").write_text(json.dumps(description.__dict__))
        reports.append(_case_report(each.case, description, precisions))
    return tuple(reports)


def _run_precision(
    each: _Prepared,
    precision: Precision,
    request: Request,
    root: Path,
    runners: Runners,
    machine: Machine,
    progress: Progress,
) -> tuple[RunnerReport, ...]:
    """All batches of a case in one precision, on the same loaded models."""
    folder = root / each.case.name
    judged = []
    for number in range(len(each.batches)):
        batch = _batch_folder(folder, number)
        collect(
            each.case,
            precision,
            _runners_of(each.case, request),
            batch,
            folder / "weights",
            runners,
            machine,
            timed=number == 0,
            progress=progress,
        )
        judged.append(judging.judge_batch(each.case, batch / precision.name, number))
        if request.save is None:
            shutil.rmtree(batch / precision.name)
    return judging.merge_batches(judged)


def _runners_of(case: CaseConfig, request: Request) -> tuple[str, ...]:
    """The request's runners; of those that nobody asked for, those that this family can have."""
    has_jagged = "jagged" in get_family(case.family).layouts
    return tuple(
        name for name in request.runners if has_jagged or request.runners_asked or name != "torch_jagged"
    )


def _batch_folder(case_folder: Path, number: int) -> Path:
    return case_folder / f"batch_{number:04d}"


def _case_report(
    case: CaseConfig, description: _Description, precisions: tuple[PrecisionReport, ...]
) -> CaseReport:
    return CaseReport(
        case=case,
        source=description.source,
        weights_source=description.weights_source,
        weights_digest=description.weights_digest,
        inputs_digests=tuple(description.inputs_digests),
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
    """0 all pass; 1 a verdict or a runner failed; 2 a runner that was asked for cannot run here."""
    entries = [entry for _, _, entry in report.runner_reports()]
    failed = any(
        entry.verdict == "FAIL" or entry.status not in (Status.OK, Status.UNAVAILABLE, Status.BUILT)
        for entry in entries
    )
    if failed:
        return 1
    needed = {*report.requested_runners, REFERENCE, ORACLE}
    if any(entry.status == Status.UNAVAILABLE.value and entry.runner in needed for entry in entries):
        return 2
    # A run that judged nothing proves nothing, except that what was to be built could be.
    judged = [
        entry
        for entry in entries
        if entry.status == Status.BUILT or (entry.verdict == "PASS" and entry.runner != REFERENCE)
    ]
    return 0 if judged else 1


@contextlib.contextmanager
def _folder(save: Path | None) -> Iterator[Path]:
    if save is None:
        with tempfile.TemporaryDirectory(prefix="parity-") as name:
            yield Path(name)
        return
    try:
        save.mkdir(parents=True, exist_ok=True)
        occupied = any(save.iterdir())
        if not occupied:
            probe = save / "request.json"
            probe.touch()
            probe.unlink()
    except OSError as error:
        raise UserError(
            "--save",
            str(save),
            f"cannot be written ({error.strerror})",
            "choose a folder that you can write to",
        ) from error
    if occupied:
        raise UserError("--save", str(save), "is not empty", "choose a new folder; nothing is written over")
    yield save


def check_names(kind: str, given: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Names without doubles, in the order given. Raises `UserError` for one that is not known."""
    import difflib

    known = tuple(known)
    names = tuple(dict.fromkeys(given))
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? known: " if near else "use "
            raise UserError(kind, name, "is not known", hint + ", ".join(known))
    return names
