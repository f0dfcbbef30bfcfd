"""Measured ceilings of GPUs: rates and overheads. This folder holds a file for each kind of GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from parity.timing.gpu import GPU

SCHEMA = "parity.ceilings/1"
MATMUL_PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
"""Precisions whose matmul rates every file has."""
QUANTISED = ("int8", "fp8")
"""Types of codes whose matmul rates a file can have, for products of codes."""
FOLDER = Path(__file__).resolve().parent

MEASURE = "python -m perf_model.measure.ceilings"
"""The program that measures them. It is a part of the checkout, not of the installed package."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class CeilingsError(ValueError):
    """A file of ceilings cannot be used; the message names the file, the problem and the fix."""


class Ceilings(BaseModel):
    """Ceilings of a GPU, as `MEASURE` measures them.

    Attributes:
        copy_bandwidth: bytes a second, read plus written, of a copy far larger than the L2.
        l2_bandwidth: bytes a second, read plus written, of copies inside the L2.
        matmul: FLOPs a second of large products, by precision, and by type of the codes in `QUANTISED`.
        kernel_seconds: seconds of an empty kernel between others in a graph.
        graph_seconds: host seconds of launching a graph.
        host_seconds: host seconds of an operation in eager PyTorch, by kind.
        environment: driver, clocks, libraries, date and command of the measurement.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: str = SCHEMA
    gpu: GPU
    copy_bandwidth: Positive
    l2_bandwidth: Positive
    matmul: dict[str, Positive]
    kernel_seconds: Positive
    graph_seconds: Positive
    host_seconds: dict[str, Positive]
    environment: dict[str, str]

    @model_validator(mode="after")
    def _complete(self) -> Ceilings:
        if self.schema_version != SCHEMA:
            raise ValueError(f"schema_version is {self.schema_version!r}, not {SCHEMA!r}")
        if missing := set(MATMUL_PRECISIONS) - set(self.matmul):
            raise ValueError(f"matmul lacks {', '.join(sorted(missing))}")
        return self

    def matmul_rate(self, precision: str) -> float:
        """FLOPs a second in a precision. Raises `ValueError` for one without a measured rate."""
        if precision not in self.matmul:
            known = ", ".join(self.matmul)
            raise ValueError(f"precision: {precision!r} has no measured matmul rate; use {known}")
        return self.matmul[precision]


def read_ceilings(path: Path) -> Ceilings:
    """Read a file of ceilings. Raises `CeilingsError` with the file, the problem and the fix."""
    try:
        return Ceilings.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        fix = f"measure it again, in a checkout: {MEASURE} --output {path}"
        raise CeilingsError(f"{path}: holds no ceilings ({error}); {fix}") from error


def find_ceilings(gpu: GPU, folder: Path = FOLDER) -> Ceilings | None:
    """The ceilings measured on this kind of GPU, from `folder`'s files; None where there are none."""
    for path in sorted(folder.glob("*.json")):
        ceilings = read_ceilings(path)
        if ceilings.gpu == gpu:
            return ceilings
    return None
