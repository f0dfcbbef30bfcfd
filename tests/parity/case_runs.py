"""Runs of single cases for tests: in this process, or in real processes."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cases.configured import ConfiguredCase
from cases.registry import SHIPPED
from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.capture.slices import MemoryBudget
from parity.cli.arguments import Arguments
from parity.execution.case_files import write_inputs
from parity.execution.collect import DEFAULT_BUDGET, collect
from parity.execution.folder import BatchFolder, CaseFolder, PrecisionFolder
from parity.execution.request import Batch, Steps
from parity.execution.scheduler import RunnerPool, Scheduler
from parity.in_process import CleanRun
from parity.inputs import weights
from parity.inputs.arrays import make_inputs, poisoned_inputs
from parity.pipeline import run
from parity.report.assemble import runner_report
from parity.report.schema import Report, RunnerReport
from parity.runners.tripy.lean_traces import lean_traces
from parity.studies.fault_injection.bench import Bench
from parity.verdict.batch import judge_batch
from parity.verdict.comparison import Comparison

TIMEOUT = 600.0


@functools.lru_cache(maxsize=1)
def clean_run(name: str, precision: str, seed: int) -> CleanRun:
    """The evidence on a case, made in this process once for the tests that follow each other."""
    return CleanRun(load_case(name).with_input(seed=seed), PRECISIONS[precision])


@functools.cache
def judged(name: str, precision: str, seed: int, runner: str) -> Comparison:
    """A runner's verdict on a case, from a run in this process."""
    return clean_run(name, precision, seed).judge(runner)


@functools.cache
def bench_of(name: str) -> Bench:
    """The bench of a case in float32, one in a process: its tests are in the group of `on_bench`."""
    with lean_traces():
        return Bench(load_case(name), PRECISIONS["fp32"])


def on_bench(name: str) -> pytest.MarkDecorator:
    """The group of tests that share the bench of a case."""
    return pytest.mark.xdist_group(f"bench-{name}")


@functools.cache
def run_case(name: str, precision: str, seed: int, runners: tuple[str, ...]) -> dict[str, RunnerReport]:
    """Run and judge a case once in this process, however many tests look at it."""
    case = load_case(name).with_input(seed=seed)
    with collected(case, precision, runners) as folder:
        return batch_reports(case, folder.precision(precision))


def batch_reports(case: ConfiguredCase, folder: PrecisionFolder) -> dict[str, RunnerReport]:
    """The reports on the runners of a case's first batch."""
    return {
        name: runner_report(name, runner)
        for name, runner in judge_batch(case, folder, batch="typical").items()
    }


def run_command(**options: object) -> Report:
    """The report of a whole run with these options of the command line, in processes and with timings."""
    arguments = Arguments(registry=SHIPPED, time_limit=300.0, command="test", **options)
    return run(arguments.request(), progress=lambda _: None)


@contextlib.contextmanager
def collected(
    case: ConfiguredCase, precision: str, runners: tuple[str, ...], budget: MemoryBudget = DEFAULT_BUDGET
) -> Iterator[BatchFolder]:
    """A folder with the captures of a case's runners, while it is used."""
    with tempfile.TemporaryDirectory(prefix="parity-test-") as name:
        folder = CaseFolder(Path(name))
        write_case(case, folder)
        pool = RunnerPool(folder.path, TIMEOUT)
        try:
            batch = Batch(case, PRECISIONS[precision], folder.batch(0), folder.weights)
            collect(batch, runners, pool, Scheduler(), lambda _: None, Steps(), budget)
            yield batch.folder
        finally:
            pool.stop()


def write_case(case: ConfiguredCase, folder: CaseFolder) -> None:
    """A case's synthetic inputs, poisoned ones and initial weights, where a run has them."""
    weights.export(weights.case_weights(case)[0], folder.weights)
    inputs = make_inputs(case).typical
    write_inputs(inputs, poisoned_inputs(case, inputs, case.seed), folder.batch(0))


def tapped_paths(case: ConfiguredCase) -> list[str]:
    """Paths of the modules of a case, containers that are never called left out."""
    model = case.build_reference()
    lists = ("ModuleList", "ParameterList")
    return [path for path, module in model.named_modules() if path and type(module).__name__ not in lists]
