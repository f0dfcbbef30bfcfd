"""Measured ceilings of GPUs.

A subfolder holds the numbers of one kind of GPU: `ceilings.json` (rates and overheads, read here) and
`calibration.json` (times of single kernels, read by `perf_model.measured`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from perf_model.points import PRECISIONS

SCHEMA = "perf_model.ceilings/1"
FILE = "ceilings.json"
FOLDER = Path(__file__).resolve().parent

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class CeilingsError(ValueError):
    """A file of ceilings cannot be used; the message names the file, the problem and the fix."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GPU(_Part):
    """A kind of GPU. Ceilings hold for exactly this kind, partitions included."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int = Field(gt=0)
    memory_gib: int = Field(gt=0, description="rounded, since drivers reserve different amounts")
    l2_bytes: int = Field(gt=0)


class Ceilings(_Part):
    """Ceilings of a GPU, measured by `perf_model.measure.ceilings`.

    Attributes:
        copy_bandwidth: bytes a second, read plus written, of a copy far larger than the L2.
        l2_bandwidth: bytes a second, read plus written, of copies inside the L2.
        matmul: FLOPs a second of large products, by precision.
        kernel_seconds: seconds of an empty kernel between others in a graph.
        graph_seconds: host seconds of launching a graph.
        host_seconds: host seconds of an operation in eager PyTorch, by kind.
        environment: driver, clocks, libraries, date and command of the measurement.
    """

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
        if missing := set(PRECISIONS) - set(self.matmul):
            raise ValueError(f"matmul lacks {', '.join(sorted(missing))}")
        return self


def read_ceilings(path: Path) -> Ceilings:
    """Read a file of ceilings. Raises `CeilingsError` with the file, the problem and the fix."""
    try:
        return Ceilings.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        fix = f"measure it again: python -m perf_model.measure.ceilings --output {path}"
        raise CeilingsError(f"{path}: holds no ceilings ({error}); {fix}") from error


def find_ceilings(gpu: GPU, folder: Path = FOLDER) -> Ceilings | None:
    """The ceilings measured on this kind of GPU, from `folder`'s subfolders; None where there are none."""
    for path in sorted(folder.glob(f"*/{FILE}")):
        ceilings = read_ceilings(path)
        if ceilings.gpu == gpu:
            return ceilings
    return None
