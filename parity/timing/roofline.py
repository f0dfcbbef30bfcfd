"""The least time of each module on the GPU, saved beside the captures.

A roofline needs the ceilings of the GPU that ran the batch. It is computed when the batch runs and saved with
it, so that a replay on another machine keeps it. Without a GPU there are no rooflines. On a GPU without
measured ceilings, the report names the command that measures them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import BaseModel

from parity.base.errors import UserError
from parity.base.files import write_new
from parity.base.precision import Precision
from parity.capture.names import TapName
from parity.case import Case
from parity.inputs.arrays import CaseInputs
from parity.timing.ceilings import MEASURE, CeilingsError, find_ceilings
from parity.timing.gpu import GPU, this_gpu
from parity.timing.least_time import Roofline, roofline

WHOLE_MODEL = ""


class Rooflines(BaseModel):
    """Rooflines of a case in a precision on one kind of GPU.

    Attributes:
        gpu: Name of the GPU.
        reason: Reason for missing rooflines; empty if there are rooflines.
        by_tap: Least times by tap; the whole model has the key "".
    """

    gpu: str
    reason: str = ""
    by_tap: dict[str, Roofline] = {}


def find_rooflines(case: Case, precision: Precision, inputs: CaseInputs, gpu: GPU) -> Rooflines:
    """The rooflines of a case's modules on a kind of GPU, or the reason for missing ones."""
    try:
        ceilings = find_ceilings(gpu)
    except CeilingsError as error:
        return Rooflines(gpu=gpu.name, reason=str(error))
    if ceilings is None:
        file = f"parity/timing/ceilings/{gpu.name.split()[-1].lower()}.json"
        fix = f"run in a checkout: {MEASURE} --output {file}"
        return Rooflines(gpu=gpu.name, reason=f"the ceilings of this {gpu.name} are not known; {fix}")
    try:
        works = dict(case.work(inputs, precision.dtype.itemsize))
        if case.incremental_arguments(inputs) is not None:
            appending = case.appending_work(inputs, precision.dtype.itemsize)
            works |= {str(TapName.parse(tap).appending()): work for tap, work in appending.items()}
    except ValueError as error:
        return Rooflines(gpu=gpu.name, reason=str(error))
    by_tap = {tap: roofline(work, precision.name, ceilings) for tap, work in works.items()}
    return Rooflines(gpu=gpu.name, by_tap=by_tap)


def write_rooflines(case: Case, precision: Precision, inputs: CaseInputs, path: Path) -> None:
    """Save the rooflines on this machine's GPU; nothing without a GPU."""
    if torch.cuda.is_available():
        rooflines = find_rooflines(case, precision, inputs, this_gpu())
        write_new(path, rooflines.model_dump_json(indent=1).encode())


def read_rooflines(path: Path) -> Rooflines | None:
    """Saved rooflines; None if there are none.

    Raises:
        UserError: The file is damaged.
    """
    if not path.exists():
        return None
    try:
        return Rooflines.model_validate_json(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError("rooflines", str(path), "is damaged", "run again") from error
