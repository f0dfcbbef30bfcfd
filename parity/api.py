"""Comparisons from Python: `compare` two models, or `check` a case.

Both go through the pipeline of the command line: the same runners, captures, verdicts and report. A case that
was loaded from a reference runs in processes of its own. Live models run in this process, because no other
process can import them: a crash of a runner then ends this process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity.base.errors import (
    UserError,
    check_names,
    from_here,
    require_once,
    require_sequence,
    with_arguments,
)
from parity.base.precision import PRECISIONS
from parity.case import Case, ModelPair
from parity.case.loading import require_facts
from parity.case.pair import OPTIONS
from parity.case.pairing import UNKNOWN
from parity.case.patterns import pattern_of
from parity.execution.record import ORACLE, REFERENCE, Status
from parity.execution.request import Request
from parity.pipeline import run
from parity.report.coverage import in_words
from parity.report.files import require_own, write_again
from parity.report.overview import counted, tolerated_in
from parity.report.schema import Report, RunnerReport
from parity.runners import RUNNERS, TIMEOUT
from parity.verdict.judgement import MODEL_OUTPUT
from parity.verdict.magnitudes import BEYOND
from parity.verdict.merging import NOT_DETECTED
from parity.verdict.notes import INSIDE_ALONE
from parity.verdict.patterns import is_place
from parity.verdict.sensitivity import INSENSITIVE_ABOVE, error_text

if TYPE_CHECKING:
    import nvtripy
    import torch

PRECISIONS_COMPARED = ("fp32", "fp16")
"""The precisions of a comparison that names none."""
COMMAND = "parity.compare of"
"""Beginning of the command in the report of a comparison."""
MOST_NOTES = 2
"""Largest number of printed notes of one kind."""
_KINDS = {
    INSIDE_ALONE: INSIDE_ALONE,
    NOT_DETECTED: f"that miss an error of {INSENSITIVE_ABOVE:.0%}",
    BEYOND: "that are right on the inputs, and not beyond them",
}
"""The printed notes on modules by their beginning, with the words for the modules of more such notes."""
MOST_NAMES = 4
"""Largest number of names of modules in a printed note."""


class ParityError(AssertionError):
    """A port differs from its reference, or could not be judged; the message is the printed result."""


@with_arguments
@dataclass(frozen=True)
class Result:
    """The result of a comparison; `str` of it has a line for each precision, and the culprit below a failure.

    The last line counts the lines, branches, outcomes, thresholds and sizes of the port that the inputs leave
    out; the written report lists them.

    Attributes:
        report: Every number, as in `report.json`.
    """

    report: Report

    @property
    def passed(self) -> bool:
        """Whether every runner in every precision passes."""
        return self.report.exit_code == 0

    def raise_if_failed(self) -> None:
        """Raises `ParityError` unless everything passes."""
        __tracebackhide__ = True
        if not self.passed:
            raise ParityError(f"the port does not pass\n{self}")

    def write(self, folder: str | Path) -> Path:
        """Write `report.json`, the page and the other forms of the report, in place of an earlier comparison.

        Raises:
            UserError: The folder cannot be written, or holds a report's file that no comparison wrote.
        """
        if not isinstance(folder, (str, Path)) or not str(folder):
            raise UserError("folder", repr(folder), "is no path", "give the path of a folder")
        path = Path(folder)
        require_own(path, COMMAND)
        try:
            write_again(self.report, path)
        except OSError as error:
            problem = f"cannot be written ({error.strerror})"
            raise UserError("folder", str(path), problem, "choose a folder that you can write to") from error
        return path

    def __str__(self) -> str:
        lines, without_truth = [], set()
        for case, precision, runner in self.report.runner_reports():
            runs, is_truth = runner.status == Status.OK.value, runner.runner in (REFERENCE, ORACLE)
            name = f"{case.case.name} {precision.precision}"
            if name in without_truth or (is_truth and runs):
                continue
            lines.append(f"{name} {_line(runner)}")
            lines += [f"    {line}" for line in details(runner)]
            if is_truth:
                # Nothing else can be judged.
                without_truth.add(name)
        if not lines:
            lines.append("nothing is compared: the reference alone runs; name a runner of the port")
        return "\n".join([*lines, *_coverage(self.report)])


@from_here
def compare(
    torch_model: torch.nn.Module | Callable[[], torch.nn.Module],
    port: nvtripy.Module | Callable[..., nvtripy.Module],
    inputs: Mapping[str, Any],
    precisions: Sequence[str] | None = None,
    runners: Sequence[str] = ("tripy",),
    **options: Any,
) -> Result:
    """Compare a Tripy model with its PyTorch original, module by module, in this process.

    Both models get the same weights and inputs. A float64 run of the PyTorch model is the truth. The port may
    be as far from it as rounding explains.

        result = parity.compare(torch_model, TripyModel, inputs={"idx": ids})
        print(result)
        result.raise_if_failed()

    Args:
        torch_model, port, inputs, options: See `parity.ModelPair`.
        precisions: Names of precisions; by default fp32 and fp16, or that of a Tripy model.
        runners: Names of the judged runners.

    Returns:
        The result.

    Raises:
        UserError: A model, an input or an option that the comparison cannot use.
    """
    check_names("option", options, ("precisions", "runners", *OPTIONS))
    case = ModelPair(torch_model, port, inputs, **options)
    own = case.precision_of_port()
    if own is not None:
        for precision in precisions if isinstance(precisions, Collection) else ():
            if precision in PRECISIONS and precision != own:
                raise UserError(
                    "precisions",
                    precision,
                    f"is not the precision of the Tripy model, {own}",
                    "give a function that builds it from a type, such as its class",
                )
    default = PRECISIONS_COMPARED if own is None else (own,)
    with case.port_restored():
        return check(case, default if precisions is None else precisions, runners)


@from_here
def check(
    case: Case, precisions: Sequence[str] = PRECISIONS_COMPARED, runners: Sequence[str] = ("tripy",)
) -> Result:
    """Run and judge a case, in this process unless it was loaded by `parity.load_case`.

    Args:
        case: The case.
        precisions: Names of precisions.
        runners: Names of the judged runners.

    Raises:
        UserError: A bad name, or a case that cannot run.
    """
    if not isinstance(case, Case):
        fix = "give an instance of a subclass of parity.Case; parity.compare takes two models"
        raise UserError("case", case, "is no parity.Case", fix)
    require_facts(case, type(case).__name__)
    for field, names, known in (("precisions", precisions, PRECISIONS), ("runners", runners, RUNNERS)):
        require_sequence(field, names, known)
        if not names:
            raise UserError(field, names, "names none", "leave it out, or give a tuple of names")
        require_once(field, map(str, names))
    precisions = check_names("precisions", precisions, PRECISIONS)
    runners = check_names("runners", runners, RUNNERS)
    if case.is_live and "tf32" in precisions:
        # The libraries read the switch of tf32 when they start.
        raise UserError(
            "precisions",
            "tf32",
            "needs a process of its own",
            "write an importable case, see parity.load_case",
        )
    case.check_options()
    if any(name.startswith(("tripy", "tensorrt")) for name in runners):
        from parity.runners.tripy.pairing import check_port

        check_port(case, PRECISIONS[precisions[0]].dtype)
    request = Request(
        cases=(case,),
        precisions=precisions,
        runners=runners,
        runners_asked=True,
        data=None,
        checkpoint=None,
        save=None,
        timeout=TIMEOUT,
        command=f"{COMMAND} {case.name}",
    )
    return Result(run(request, progress=lambda _: None))


def _coverage(report: Report) -> Iterator[str]:
    """A line where the inputs leave something of the port unasked, or where that is not known."""
    if report.coverage is not None:
        if report.coverage.unasked:
            yield f"{in_words(report.coverage)}; the written report lists them"
        yield from (f"no coverage: {reason}" for reason in report.coverage.reasons)


def _line(runner: RunnerReport) -> str:
    """Verdict and worst module of a runner in a line."""
    if runner.verdict == "NONE":
        return f"{runner.status} in {runner.runner}: {runner.reason}"
    judged = [module for module in runner.modules if module.verdicts]
    if runner.verdict == "FAIL" or not judged:
        diagnosis = runner.diagnosis
        return f"{runner.verdict} at {diagnosis.tap or 'the whole model' if diagnosis is not None else '-'}"
    worst = max(judged, key=lambda module: module.margin)
    line = (
        f"{runner.verdict}: {len(judged)} modules and outputs; at most {worst.margin:.2g} of its limit, "
        f"at {worst.tap}"
    )
    if runner.verdict == "INSENSITIVE":
        # The diagnosis tells the error that is not detected.
        return line
    least = max(module.min_detectable_error for module in judged)
    modules = [module.min_detectable_error for module in judged if module.kind != MODEL_OUTPUT]
    inside = max(modules, default=least)
    # Errors of all modules add up at the outputs, and may hide one that a module's own check detects.
    smaller = ""
    if inside < least and least > INSENSITIVE_ABOVE:
        change = f"of {error_text(inside, 1)}" if inside else "any change"
        smaller = f", and {change} in each module"
    detected = "no relative error" if math.isinf(least) else f"any relative error of {error_text(least, 1)}"
    return f"{line}; {detected} would fail{smaller}"


def details(runner: RunnerReport) -> list[str]:
    """The place and the cause of a failure, and notes."""
    lines = [f"TOLERATED: {text}" for text in tolerated_in(runner)]
    diagnosis = runner.diagnosis
    if diagnosis is not None and diagnosis.kind != "none":
        lines.append(f"where: {diagnosis.text}")
        lines += [f"{'place' if is_place(text) else 'cause'}: {text}" for text in diagnosis.explanation]
    return lines + _notes(runner)


def _notes(runner: RunnerReport) -> list[str]:
    """Modules without a verdict, without one alone, or that detect too little by their nature.

    Modules of one class and reason share a line.
    """
    without: dict[tuple[str, str], dict[str, None]] = {}
    noted: dict[str, dict[tuple[str, str], dict[str, None]]] = {beginning: {} for beginning in _KINDS}
    for module in runner.modules:
        # A module with several calls or outputs has its gap and notes at each of them.
        if module.gap:
            without.setdefault((module.kind, module.gap), {})[module.path] = None
        for note in module.notes:
            for beginning, groups in noted.items():
                if note.startswith(beginning):
                    groups.setdefault((module.kind, note), {})[module.path] = None
    lines = _lines(without)
    for beginning, groups in noted.items():
        lines += _lines(groups)[:MOST_NOTES]
        more = len(groups) - MOST_NOTES
        if more > 0:
            left_out = f"{counted(more, 'more note')} on modules {_KINDS[beginning]}"
            lines.append(f"note: {left_out}; the written report lists them")
    return lines


def _lines(groups: Mapping[tuple[str, str], Mapping[str, None]]) -> list[str]:
    """A line for the modules of each class and reason."""
    return [f"note: {_named(list(paths), kind)}: {reason}" for (kind, reason), paths in groups.items()]


def _named(paths: Sequence[str], kind: str) -> str:
    """Modules of one class; paths that differ in numbers alone are one pattern."""
    # The reference has no class for a module that the port alone has.
    is_extra = kind == UNKNOWN
    if len(paths) == 1:
        return f"{paths[0]} ({'in the port alone' if is_extra else kind})"
    alike: dict[str, list[str]] = {}
    for path in paths:
        alike.setdefault(pattern_of(path), []).append(path)
    names = [pattern if len(group) > 1 else group[0] for pattern, group in alike.items()]
    if len(names) > MOST_NAMES:
        names[MOST_NAMES - 1 :] = ["..."]
    modules = "modules, in the port alone" if is_extra else f"{kind} modules"
    return f"{', '.join(names)} ({len(paths)} {modules})"
