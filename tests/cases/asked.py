"""What the plain run's cases ask of the port, measured in this process without verdicts."""

from __future__ import annotations

import contextlib

import torch

from cases.registry import SHIPPED
from parity.base.precision import PRECISIONS
from parity.case import Case
from parity.coverage.options import options_of
from parity.coverage.questions import Coverage
from parity.coverage.sizes import asked_sizes
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights
from parity.report.coverage import reported
from parity.report.schema import CoverageReport
from parity.runners import Runner, make_runner
from parity.runners.base import MeasuresCoverage, RecordsCalls, Unavailable


def default_cases() -> list[Case]:
    """The cases of a run that names none."""
    return [SHIPPED.load(listed.name) for listed in SHIPPED.cases() if listed.default]


def asked_by(cases: list[Case], runners: tuple[str, ...] = ("tripy", "tripy_jagged")) -> CoverageReport:
    """What the batches of some cases ask, by all runners that have the case's form."""
    coverage = options_of(cases)
    excuses: dict[str, str] = {}
    with torch.inference_mode():
        for case in cases:
            coverage.update(_asked_by(case, runners))
            excuses |= case.cannot_be_asked()
    return reported(coverage, excuses)


def _asked_by(case: Case, runners: tuple[str, ...]) -> Coverage:
    weights, _ = case_weights(case)
    reference = _loaded("torch", case, weights)
    assert isinstance(reference, RecordsCalls)
    ports = []
    for name in runners:
        with contextlib.suppress(Unavailable):  # the case has no such form
            ports.append(_loaded(name, case, weights))
    coverage = Coverage()
    for batch in make_inputs(case).batches:
        arrays = batch.inputs.arrays
        recorded = reference.record(arrays)
        for port in ports:
            assert isinstance(port, MeasuresCoverage)
            coverage.update(port.coverage(arrays, recorded))
    return asked_sizes(coverage)


def _loaded(name: str, case: Case, weights: dict[str, torch.Tensor]) -> Runner:
    runner = make_runner(name)
    runner.load(case, PRECISIONS["fp32"], weights)
    return runner


def written(report: CoverageReport) -> str:
    """What is not asked, one question a line."""
    from parity.report.coverage import file_of, in_words

    lines = [in_words(report)]
    lines += [
        f"{entry.kind:10}{file_of(entry) or entry.place:48} {entry.place if entry.module else ''}: "
        f"{entry.text}  NOT ASKED: {', '.join(entry.missing)}"
        for entry in report.unasked
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    import sys

    names = sys.argv[1:]
    cases = [SHIPPED.load(name) for name in names] if names else default_cases()
    sys.stdout.write(written(asked_by(cases)) + "\n")
