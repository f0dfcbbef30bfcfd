"""Measured latencies of assignments on TensorRT."""

from __future__ import annotations

from collections.abc import Sequence

from parity.base.precision_policy import Policy
from parity.runners.tripy.modules import mlir_tensorrt
from parity.runners.tripy.policy import TripyPolicyRunner
from parity.studies.precision_search.bench import Bench, Evaluation

WARM_UPS = 3
ROUNDS = 20


def can_measure() -> bool:
    """Whether TensorRT runs the port. A latency of the portable runtime says nothing about TensorRT."""
    return not getattr(mlir_tensorrt, "__portable__", False)


def latencies(bench: Bench, runs: Sequence[Evaluation]) -> list[list[float]]:
    """Seconds of each assignment's runs: interleaved rounds, synchronised, with the inputs in place."""
    runners = []
    for run in runs:
        runner = TripyPolicyRunner(Policy.of(run.precisions))
        runner.load_policy(bench.case, bench.weights)
        runner.time(bench.arrays, WARM_UPS)
        runners.append(runner)
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for runner, own in zip(runners, seconds, strict=True):
            own += runner.time(bench.arrays, 1).seconds
    return seconds
