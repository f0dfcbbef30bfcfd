"""Verdicts on one batch of a case in one precision, from its captures."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from parity.capture.names import Phase, TapName
from parity.case import Case
from parity.case.plan import TYPICAL
from parity.execution.folder import PrecisionFolder
from parity.execution.record import NOT_HERE, ORACLE, REFERENCE, RowTrialRecord, RunnerRecord, Status
from parity.verdict.captured import open_batch, replays_of, rerun_of, saved_capture
from parity.verdict.comparison import Comparison, compare_runners
from parity.verdict.diagnosis import with_own_leak
from parity.verdict.error_map import with_error_maps
from parity.verdict.evidence import Evidence, Results
from parity.verdict.explanation import explain_between, explain_tap, with_cause, with_translation
from parity.verdict.judgement import Diagnosis, RunnerJudgement
from parity.verdict.magnitudes import beyond_inputs
from parity.verdict.notes import evaluated, notes
from parity.verdict.rows import judge_rows, row_diagnosis

JudgesBatch = Callable[[Case, PrecisionFolder, str, Collection[str]], dict[str, RunnerJudgement]]
"""The type of `judge_batch`."""
_PLACE = re.compile(r"\(\S+:\d+ in \w+\)$")
"""File, line and function in an error's text, see `parity.execution.errors.error_text`."""


def judge_batch(
    case: Case,
    folder: PrecisionFolder,
    batch: str,
    diagnosed: Collection[str] = (),
    threads: int = 1,
) -> dict[str, RunnerJudgement]:
    """Judge every runner of one batch in one precision.

    Args:
        case: The case.
        folder: Folder of the batch in the precision.
        batch: Name of the batch.
        diagnosed: Runners that fail in an earlier batch. The search for a cause is not for them.
        threads: Large taps that are judged side by side.

    Returns:
        A judgement for each runner. The oracle has one only if it fails.

    Raises:
        UserError: A file of the batch is missing or damaged.
    """
    captured = open_batch(case, folder)
    evidence, results = captured.evidence, captured.results
    record, blocked = captured.record, captured.blocked
    judged = {
        name: runner
        for name, runner in record.runners.items()
        if not (name == ORACLE and runner.status is Status.OK)
    }
    if evidence is None:
        return {name: _without_verdict(runner, blocked, batch) for name, runner in judged.items()}
    evidence.replays, evidence.threads = replays_of(case, folder), threads
    reference = folder.runner(REFERENCE)
    evidence.appending = saved_capture(reference.appending)
    evidence.poisoned = partial(saved_capture, reference.poisoned)
    comparisons = zip(results.values(), compare_runners(evidence, list(results.values())), strict=True)
    expected_rows = () if case.states_rows else record.runners[REFERENCE].row_trials or ()
    judgements = {}
    for name, runner in judged.items():
        if name not in results:
            judgements[name] = _without_verdict(runner, blocked, batch)
        else:
            own, comparison = next(comparisons)
            grounds, own = comparison.evidence or evidence, comparison.results or own
            grounds.rerun = None if name in diagnosed else rerun_of(case, folder)
            own = _judge_runner(grounds, own, comparison, runner, expected_rows, batch)
            judgements[name] = with_translation(own, name)
    of_reference = judgements.get(REFERENCE)
    own_leak = of_reference.padding_leak if of_reference else ""
    return {
        name: replace(
            judgement, diagnosis=with_own_leak(judgement.diagnosis, judgement.padding_leak, own_leak)
        )
        for name, judgement in judgements.items()
    }


def _judge_runner(
    evidence: Evidence,
    results: Results,
    comparison: Comparison,
    record: RunnerRecord,
    expected_rows: Sequence[RowTrialRecord],
    batch: str,
) -> RunnerJudgement:
    diagnosis = comparison.diagnosis
    if record.status is not Status.OK:
        diagnosis = _blame(comparison, record)
    tap = comparison.tap(diagnosis.tap)
    patterns = diagnosis.explanation
    if tap is not None and not patterns and not (diagnosis.kind == "between" and tap.passed):
        patterns = explain_tap(evidence, results, tap, comparison.taps)
    explanation = with_cause(explain_between(evidence, results, comparison), patterns)
    if diagnosis.kind != "none":
        blamed = _blamed_path(diagnosis)
        is_entry = TapName.parse(blamed).is_output_of(evidence.entry)
        explanation = (*explanation, *evaluated(results, "" if is_entry else blamed))
    if tap is not None and diagnosis.kind == "module":
        explanation = (*explanation, *_other_name(evidence, tap.path))
    rows = judge_rows(evidence, comparison.taps, record.row_trials or (), expected_rows)
    if diagnosis.kind == "none":
        diagnosis = row_diagnosis(rows)
    beyond = beyond_inputs(evidence.precision, record.magnitudes, comparison.taps)
    judgement = RunnerJudgement(
        record=record,
        status=record.status,
        reason=record.reason,
        verdict="PASS" if diagnosis.kind == "none" else "FAIL",
        diagnosis=replace(
            diagnosis,
            explanation=explanation,
            batch=batch,
            source=_calling_line(diagnosis, results) or _source(diagnosis, record.sources),
        ),
        taps=tuple(
            replace(tap, notes=(*notes(evidence, results, comparison, tap), *beyond.get(tap.tap, ())))
            for tap in (replace(tap, batch=batch) for tap in comparison.taps)
        ),
        checks=comparison.checks,
        padding_leak=comparison.padding_leak,
        observer_difference=comparison.observer_difference,
        rows=rows,
    )
    return with_error_maps(judgement, evidence, results)


def _blamed_path(diagnosis: Diagnosis) -> str:
    """The path of the module whose code a diagnosis blames. The entry's is empty, or one of its outputs."""
    if diagnosis.code is not None:
        return diagnosis.code
    return TapName.parse(diagnosis.argument or diagnosis.tap).path


def _other_name(evidence: Evidence, path: str) -> Iterator[str]:
    """The name of a module in the port, where it is another one: `names` may pair the wrong modules."""
    own = evidence.port_path(path)
    if own.rpartition(".")[2] != path.rpartition(".")[2]:
        yield f"names pairs it with {own} of the port"


def _calling_line(diagnosis: Diagnosis, results: Results) -> str:
    """The line of the port's code that passes the argument of a diagnosis; empty for others."""
    if not diagnosis.argument:
        return ""
    argument = TapName.parse(diagnosis.argument)
    run = results.appending if argument.appends else results.received
    received = run.arguments.get(str(argument.module_call))
    return received.source if received is not None else ""


def _source(diagnosis: Diagnosis, sources: Mapping[str, str]) -> str:
    """The place of the port's code that a diagnosis names: of the module, or of the nearest one around it."""
    if diagnosis.kind not in ("module", "amplification", "between"):
        return ""
    name, path = TapName.parse(diagnosis.argument or diagnosis.tap), _blamed_path(diagnosis)
    while path:
        for phase in (name.phase, Phase.FORWARD):
            if place := sources.get(str(TapName(path, phase=phase))):
                return place
        path = path.rpartition(".")[0]
    return sources.get(str(TapName("", phase=name.phase)), "")


def _blame(comparison: Comparison, record: RunnerRecord) -> Diagnosis:
    """The diagnosis of a runner that raised: a module that fails alone, else the whole model.

    A module may raise another error alone, since it has other parameters than the reference's. It is not at
    fault.
    """
    tap = comparison.tap(comparison.diagnosis.tap)
    if tap is None or tap.isolated is None or tap.isolated.passed:
        return Diagnosis("check", "", f"every module passes on its own, and {record.reason}")
    problem = record.problems.get(str(TapName.parse(tap.tap).module_call), "")
    if not problem or _is_same(problem, record.reason):
        return comparison.diagnosis
    wrong = (
        f"{other.path} is wrong on its own"
        for other in comparison.taps
        if other.isolated is not None
        and not other.isolated.passed
        and str(TapName.parse(other.tap).module_call) not in record.problems
    )
    told = next(wrong, "every module that runs on its own passes")
    return Diagnosis("check", "", f"{told}, and {record.reason}")


def _is_same(problem: str, reason: str) -> bool:
    """Whether the error of a module alone is in a runner's reason: by its line of code, else by its words."""
    place = _PLACE.search(problem)
    return (place[0] if place else problem) in reason


def _without_verdict(record: RunnerRecord, blocked: str, batch: str) -> RunnerJudgement:
    status = record.status if record.status is not Status.OK else Status.ERROR
    reason = record.reason or blocked
    if batch not in ("", TYPICAL) and status not in NOT_HERE:
        reason = f"{reason}, in batch {batch}"
    if status is Status.REFUSED:
        # A refused graph is a fault of the port and fails without a comparison.
        diagnosis = Diagnosis("check", text=record.reason, batch=batch)
        return RunnerJudgement(record, status, reason, "FAIL", diagnosis)
    return RunnerJudgement(record, status, reason, "NONE")
