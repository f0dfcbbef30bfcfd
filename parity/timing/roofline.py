"""How far each latency is from what the GPU allows: limits, saved and reported.

A limit needs the ceilings of the very kind of GPU that the latencies were measured on, so it is found when
they are, and saved with them: a run that is judged again elsewhere keeps its own. Without a GPU there are
none; on one whose ceilings nobody has measured the report says so, with the command that measures them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import BaseModel

from cases.registry import get_family
from configs import CaseConfig
from parity.base.errors import UserError
from parity.base.files import write_new
from parity.base.precision import Precision
from parity.capture.names import TapName
from parity.execution.folder import PrecisionFolder
from parity.execution.record import REFERENCE
from parity.inputs.arrays import CaseInputs
from parity.report.schema import LatencyReport, LimitReport, RunnerReport
from perf_model.ceilings import GPU, CeilingsError, find_ceilings
from perf_model.limits import limit
from perf_model.measure.machine import this_gpu
from perf_model.work import appending_work, case_work

WHOLE_MODEL = ""


class Limits(BaseModel):
    """Limits of a case in a precision, by tap; the whole model's under "". `reason`: why there are none."""

    gpu: str
    reason: str = ""
    limits: dict[str, LimitReport] = {}


def find_limits(case: CaseConfig, precision: Precision, inputs: CaseInputs, gpu: GPU) -> Limits:
    """The limits of a case's modules on a kind of GPU, or why there are none."""
    try:
        ceilings = find_ceilings(gpu)
    except CeilingsError as error:
        return Limits(gpu=gpu.name, reason=str(error))
    if ceilings is None:
        folder = gpu.name.split()[-1].lower()
        command = f"python -m perf_model.measure.ceilings --output perf_model/ceilings/{folder}/ceilings.json"
        return Limits(gpu=gpu.name, reason=f"the ceilings of this {gpu.name} are not known; run {command}")
    shapes = {name: array.shape for name, array in inputs.arrays.items()}
    try:
        works = case_work(case, shapes, precision.dtype.itemsize)
        if get_family(case.family).incremental_arguments(case.model, inputs.arrays) is not None:
            appending = appending_work(case, shapes, precision.dtype.itemsize)
            works |= {str(TapName.parse(tap).appending()): work for tap, work in appending.items()}
    except ValueError as error:
        return Limits(gpu=gpu.name, reason=str(error))
    found = {tap: limit(work, precision.name, ceilings) for tap, work in works.items()}
    limits = {tap: LimitReport(seconds=each.seconds, bound=each.bound) for tap, each in found.items()}
    return Limits(gpu=gpu.name, limits=limits)


def write_limits(case: CaseConfig, precision: Precision, inputs: CaseInputs, folder: PrecisionFolder) -> None:
    """Save the limits on this machine's GPU beside a batch's captures; nothing where there is no GPU."""
    if torch.cuda.is_available():
        limits = find_limits(case, precision, inputs, this_gpu())
        write_new(folder.roofline, limits.model_dump_json(indent=1).encode())


def with_limits(reports: Mapping[str, RunnerReport], folder: PrecisionFolder) -> dict[str, RunnerReport]:
    """A batch's reports, their latencies beside the limits that were saved with them.

    Raises:
        UserError: the saved limits are damaged.
    """
    path = folder.roofline
    if not path.exists():
        return dict(reports)
    try:
        limits = Limits.model_validate_json(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError("limits", str(path), "is damaged", "run again") from error
    return {name: _with(report, limits) for name, report in reports.items()}


def _with(report: RunnerReport, limits: Limits) -> RunnerReport:
    # A runner that says that it works on the processor is none that the GPU limits.
    if "cpu" in report.label:
        return report

    def beside(latency: LatencyReport | None, tap: str) -> LatencyReport | None:
        return latency and latency.model_copy(update={"limit": limits.limits.get(tap)})

    modules = tuple(
        # A module with several outputs is timed in its first row, whose tap has an index.
        module.model_copy(
            update={"latency": beside(module.latency, str(TapName.parse(module.tap).module_call))}
        )
        for module in report.modules
    )
    whole = beside(report.latency, WHOLE_MODEL)
    # Said once, and not by every runner.
    reason = limits.reason if whole and report.runner == REFERENCE else ""
    return report.model_copy(update={"modules": modules, "latency": whole, "limit_reason": reason})
