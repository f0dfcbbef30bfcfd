"""Runs of single cases for tests: real runners in real processes, without timings."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cases.registry import get_family
from configs import CaseConfig, load_case, with_input
from parity.base.precision import PRECISIONS
from parity.capture.slices import Limits
from parity.execution.collect import DEFAULT_LIMITS, collect, write_inputs
from parity.execution.folder import BatchFolder, CaseFolder
from parity.execution.scheduler import Machine, Runners
from parity.inputs import weights
from parity.report.schema import ModuleReport, RunnerReport
from parity.verdict.judging import judge_batch

LIMIT_SECONDS = 600.0


@functools.cache
def run_case(name: str, precision: str, seed: int, runners: tuple[str, ...]) -> dict[str, RunnerReport]:
    """Run and judge a case once in this process, however many tests look at it."""
    case = with_input(load_case(name), seed=seed)
    with collected(case, precision, runners) as folder:
        return judge_batch(case, folder.precision(precision), batch=0)


@contextlib.contextmanager
def collected(
    case: CaseConfig, precision: str, runners: tuple[str, ...], limits: Limits = DEFAULT_LIMITS
) -> Iterator[BatchFolder]:
    """A folder with the captures of a case's runners, while it is used."""
    with tempfile.TemporaryDirectory(prefix="parity-test-") as name:
        folder = CaseFolder(Path(name))
        write_case(case, folder)
        lane = Runners(folder.path, LIMIT_SECONDS)
        try:
            collect(
                case,
                PRECISIONS[precision],
                runners,
                folder.batch(0),
                folder.weights,
                lane,
                Machine(),
                timed=False,
                progress=lambda _: None,
                limits=limits,
            )
            yield folder.batch(0)
        finally:
            lane.stop()


def write_case(case: CaseConfig, folder: CaseFolder) -> None:
    """A case's synthetic inputs, poisoned ones and initial weights, where a run has them."""
    family, seed = get_family(case.family), case.input.seed
    model = family.build_reference(case.model, "dense")
    weights.export(weights.initial_weights(model, seed), folder.weights)
    (inputs,) = family.synthetic(case).inputs
    write_inputs(inputs, family.poison(inputs, seed), folder.batch(0))


def tapped_paths(case: CaseConfig) -> list[str]:
    """Paths of the modules of a case, containers that are never called left out."""
    model = get_family(case.family).build_reference(case.model, "dense")
    lists = ("ModuleList", "ParameterList")
    return [path for path, module in model.named_modules() if path and type(module).__name__ not in lists]


def rows_of(report: RunnerReport, path: str) -> list[ModuleReport]:
    """Every tap of the module at `path`."""
    return [module for module in report.modules if module.path == path]
