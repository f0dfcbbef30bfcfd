"""What is measured on an H200, and the models of it."""

from __future__ import annotations

from functools import cache

from perf_model.kernels import KernelModel
from perf_model.measured import Measured, read_measurements
from tests.locations import ROOT
from tests.parity.timing.made_ceilings import h200

CALIBRATION = ROOT / "perf_model" / "calibration" / "h200.json"
RESULTS = ROOT / "benchmarks" / "results" / "h200"


@cache
def calibration() -> tuple[Measured, ...]:
    return read_measurements(CALIBRATION).measured


@cache
def evaluation(run: str = "points") -> tuple[Measured, ...]:
    return read_measurements(RESULTS / f"{run}.json").measured


@cache
def kernel_model() -> KernelModel:
    return KernelModel(h200(), calibration())
