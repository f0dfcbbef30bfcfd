"""Numbers measured on an H200, and an invented GPU whose numbers are round."""

from __future__ import annotations

from functools import cache

from perf_model.ceilings import GPU, Ceilings, read_ceilings
from perf_model.kernels import KernelModel
from perf_model.measured import Measured, read_measurements
from perf_model.models import forward, models
from perf_model.trace import Trace, trace
from tests.locations import ROOT

CEILINGS = ROOT / "perf_model" / "ceilings" / "h200"
RESULTS = ROOT / "benchmarks" / "results" / "h200"

ROUND = Ceilings(
    gpu=GPU(name="Round", capability=(9, 0), multiprocessors=100, memory_gib=100, l2_bytes=1_000_000),
    copy_bandwidth=1e12,
    l2_bandwidth=4e12,
    matmul={"fp32": 1e13, "tf32": 1e14, "fp16": 2e14, "bf16": 2e14},
    kernel_seconds=1e-6,
    graph_seconds=5e-6,
    host_seconds={"unary": 5e-6, "view": 1e-6},
    environment={},
)


@cache
def h200() -> Ceilings:
    return read_ceilings(CEILINGS / "ceilings.json")


@cache
def calibration() -> tuple[Measured, ...]:
    return read_measurements(CEILINGS / "calibration.json").measured


@cache
def evaluation(run: str = "points") -> tuple[Measured, ...]:
    return read_measurements(RESULTS / f"{run}.json").measured


@cache
def kernel_model() -> KernelModel:
    return KernelModel(h200(), calibration())


@cache
def traced(key: str) -> Trace:
    """The operations of one of `models()`."""
    return trace(forward(next(model for model in models() if model.key == key), "meta"))
