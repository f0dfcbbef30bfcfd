"""Time the points of `perf_model.points` on this machine's GPU.

python -m perf_model.measure.points calibration --output perf_model/calibration/h200.json
python -m perf_model.measure.points evaluation --output benchmarks/results/h200/points.json
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import torch

from parity.timing.gpu import this_gpu
from perf_model.measure.machine import environment
from perf_model.measure.timing import GraphTimer
from perf_model.measured import Measured, Measurements
from perf_model.points import Point, calibration_points, evaluation_points
from perf_model.workloads import Maker

SETS = {"calibration": (calibration_points, 6), "evaluation": (evaluation_points, 10)}
SEED = 0


def time_points(points: Iterable[Point], runs: int) -> tuple[Measured, ...]:
    """Time each point by replays of a graph, in the points' order."""
    timer, maker = GraphTimer(), Maker("cuda")
    torch.manual_seed(SEED)
    measured = []
    with torch.inference_mode():
        for point in points:
            work = maker.make(point)
            measured.append(Measured(point, **asdict(timer.time(work.launch, work.rotation, runs))))
    return tuple(measured)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", choices=SETS, help="set of points")
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--every", type=int, default=1, help="measure every n-th point, for a trial")
    arguments = parser.parse_args()
    gpu = this_gpu()
    points, runs = SETS[arguments.set]
    measured = time_points(points()[:: arguments.every], runs)
    Measurements(gpu, environment(), measured).save(arguments.output)


if __name__ == "__main__":
    main()
