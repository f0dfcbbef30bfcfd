"""The coverage of a port by a run's inputs, as data of the report and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from parity.case import Case
from parity.coverage.options import options_of
from parity.coverage.questions import Coverage, Kind, Question, excuse_of
from parity.coverage.sizes import VARIES
from parity.report.schema import CoverageReport, UnaskedReport
from parity.verdict.judging import PrecisionJudgement

_NEVER = ("runs",)
_PLURALS = {"branch": "branches", "bound": "bounds of the reference"}
_SINGULARS = {"bound": "bound of the reference"}
_UNASKED = ("module", "function", *(kind.value for kind in Kind))


def coverage_report(cases: Sequence[Case], judgements: Iterable[PrecisionJudgement]) -> CoverageReport | None:
    """The coverage of the port by all inputs; None where nothing is measured.

    Args:
        cases: The cases of the run.
        judgements: Their judgements.
    """
    coverage, reasons = Coverage(), set[str]()
    for judgement in judgements:
        if judgement.coverage is not None:
            coverage.update(judgement.coverage)
        reasons |= {runner.record.coverage_reason for runner in judgement.runners.values()} - {""}
    if not coverage.seen and not reasons:
        return None
    coverage.update(options_of(cases))
    excuses: dict[str, str] = {}
    for case in cases:
        excuses |= case.cannot_be_asked()
    return reported(coverage, excuses).model_copy(update={"reasons": tuple(sorted(reasons))})


def reported(coverage: Coverage, excuses: Mapping[str, str]) -> CoverageReport:
    """The report on some questions and answers.

    Args:
        coverage: Questions of all cases, with their answers.
        excuses: See `parity.case.Case.cannot_be_asked`.
    """
    counted = [question for question in coverage.seen if _counts(question, coverage)]
    missing = dict(coverage.missing())
    unasked, excused = [], []
    for entry in [*_never_run(coverage), *_rest(coverage)]:
        reason, open_answers = _excuse(entry, excuses)
        if open_answers:
            unasked.append(entry.model_copy(update={"missing": open_answers}))
        if reason:
            excused_answers = tuple(answer for answer in entry.missing if answer not in open_answers)
            excused.append(entry.model_copy(update={"missing": excused_answers, "reason": reason}))
    return CoverageReport(
        questions=dict(Counter(question.kind.value for question in counted)),
        asked=dict(Counter(question.kind.value for question in counted if question not in missing)),
        unasked=tuple(unasked),
        excused=tuple(excused),
    )


def _counts(question: Question, coverage: Coverage) -> bool:
    """Whether a question counts: a size of the model that no batch changes is no question."""
    return question.kind is not Kind.SIZE or VARIES in coverage.seen[question]


def _lines(coverage: Coverage) -> dict[str, dict[str, dict[int, bool]]]:
    """Whether each line of a module's functions runs."""
    lines: dict[str, dict[str, dict[int, bool]]] = {}
    for question, seen in coverage.seen.items():
        if question.kind is Kind.LINE:
            functions = lines.setdefault(question.module, {})
            functions.setdefault(question.place, {})[question.line] = bool(seen)
    return lines


def _never_run(coverage: Coverage) -> Iterable[UnaskedReport]:
    """Modules and functions without a line that runs."""
    for module, functions in sorted(_lines(coverage).items()):
        if not any(any(lines.values()) for lines in functions.values()):
            yield UnaskedReport(kind="module", module=module, missing=_NEVER)
            continue
        for function, lines in sorted(functions.items(), key=lambda item: min(item[1])):
            if not any(lines.values()):
                yield UnaskedReport(
                    kind="function", module=module, place=function, line=min(lines), missing=_NEVER
                )


def _rest(coverage: Coverage) -> Iterable[UnaskedReport]:
    """Questions with missing answers, less the ones that follow from another question.

    A line follows from the branch that leads to it, or from the line before it. All questions of a line that
    does not run follow from that line.
    """
    lines = _lines(coverage)
    targets = {
        (question.module, question.place, answer)
        for question, answers in coverage.missing()
        if question.kind is Kind.BRANCH
        for answer in answers
    }
    for question, answers in coverage.missing():
        own = lines.get(question.module, {}).get(question.place, {})
        if not _counts(question, coverage) or (own and not any(own.values())):
            continue
        if question.kind is Kind.LINE:
            earlier = [line for line in own if line < question.line]
            follows = bool(earlier) and not own[max(earlier)]
            if follows or (question.module, question.place, f"to `{question.text}`") in targets:
                continue
        elif own.get(question.line) is False:
            continue
        yield UnaskedReport(
            kind=question.kind.value,
            module=question.module,
            place=question.place,
            line=question.line,
            text=question.text,
            missing=answers,
        )


def _excuse(entry: UnaskedReport, excuses: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The reason for missing answers, and the answers without a reason."""
    place = f"{entry.module}:{entry.place}" if entry.module and entry.place else entry.module or entry.place
    identities = {
        answer: " | ".join(part for part in (place, entry.text, answer) if part) for answer in entry.missing
    }
    reasons = {answer: excuse_of(identity, excuses) for answer, identity in identities.items()}
    left = tuple(answer for answer, reason in reasons.items() if not reason)
    return "; ".join(dict.fromkeys(reason for reason in reasons.values() if reason)), left


def in_words(report: CoverageReport) -> str:
    """A sentence on the questions that no input asks: their numbers by kind."""
    counts = Counter(entry.kind for entry in report.unasked)
    parts = [_counted(counts[kind], kind) for kind in _UNASKED if counts[kind]]
    if parts:
        return f"not asked: {', '.join(parts)}"
    return "asked: " + ", ".join(f"all {_counted(count, kind)}" for kind, count in report.questions.items())


def _counted(number: int, kind: str) -> str:
    return f"{number} {_SINGULARS.get(kind, kind) if number == 1 else _PLURALS.get(kind, kind + 's')}"


def file_of(entry: UnaskedReport) -> str:
    """The file of an entry with its line, such as `package/module.py:12`; empty without a module."""
    if not entry.module:
        return ""
    path = entry.module.replace(".", "/") + ".py"
    return f"{path}:{entry.line}" if entry.line else path
