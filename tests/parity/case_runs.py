"""Runs of single cases for tests: real runners in real processes, without timings."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

from configs import CaseConfig, load_case, with_input
from parity import weights
from parity.collect import collect, write_inputs
from parity.families import get_family
from parity.judging import judge_batch
from parity.machine import Machine, Runners
from parity.precision import PRECISIONS
from parity.report import ModuleReport, RunnerReport

LIMIT_SECONDS = 600.0


@functools.cache
def run_case(name: str, precision: str, seed: int, runners: tuple[str, ...]) -> dict[str, RunnerReport]:
    """Run and judge a case once in this process, however many tests look at it."""
    case = with_input(load_case(name), seed=seed)
    folder = Path(tempfile.mkdtemp(prefix="parity-test-"))
    lane = Runners(folder, LIMIT_SECONDS)
    try:
        family = get_family(case.family)
        model = family.build_reference(case.model, "dense")
        weights.export(weights.initial_weights(model, seed), folder / "weights")
        (inputs,) = family.synthetic(case).inputs
        write_inputs(inputs, family.poison(inputs, seed), folder)
        collect(
            case,
            PRECISIONS[precision],
            runners,
            folder,
            folder / "weights",
            lane,
            Machine(),
            timed=False,
            progress=lambda _: None,
        )
        return judge_batch(case, folder / precision, batch=0)
    finally:
        lane.stop()
        shutil.rmtree(folder)


def tapped_paths(case: CaseConfig) -> list[str]:
    """Paths of the modules of a case, containers that are never called left out."""
    model = get_family(case.family).build_reference(case.model, "dense")
    lists = ("ModuleList", "ParameterList")
    return [path for path, module in model.named_modules() if path and type(module).__name__ not in lists]


def rows_of(report: RunnerReport, path: str) -> list[ModuleReport]:
    """Every tap of the module at `path`."""
    return [module for module in report.modules if module.path == path]
