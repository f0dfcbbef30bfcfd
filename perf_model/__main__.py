"""Prints the errors of the performance model, predictions against measurements, as Markdown tables.

    python -m perf_model benchmarks/results/h200                          # all tables
    python -m perf_model benchmarks/results/h200 --points points_second   # against another run's points

The folder holds points.json and models.json of one GPU, as the programs in `perf_model.measure` write them.
The GPU's ceilings and calibration are the files of the folder's name in `parity/timing/ceilings` and in
`perf_model/calibration`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from parity.timing.ceilings import FOLDER, CeilingsError, read_ceilings
from parity.timing.gpu import GPU
from perf_model.kernels import KernelModel
from perf_model.measured import Measurements, read_measurements
from perf_model.tables import (
    agreement_table,
    error_tables,
    histogram_table,
    lookup_table,
    model_table,
    waves_table,
)

CALIBRATIONS = Path(__file__).resolve().parent / "calibration"


def _lines(arguments: argparse.Namespace) -> Iterator[str]:
    folder, points = arguments.folder, arguments.points
    fix = f"give one with {points}.json and {arguments.models}.json"
    if not folder.is_dir():
        raise ValueError(f"folder: {folder} is no folder; {fix}")
    for name in (points, arguments.models):
        if not (folder / f"{name}.json").is_file():
            raise ValueError(f"folder: {folder} has no {name}.json; {fix}")
    file = f"{folder.resolve().name}.json"
    ceilings = read_ceilings(arguments.ceilings or FOLDER / file)
    calibration = _of_this_gpu(arguments.calibration or CALIBRATIONS / file, ceilings.gpu)
    judged = _of_this_gpu(folder / f"{points}.json", ceilings.gpu)
    model = KernelModel(ceilings, calibration.measured)
    yield from error_tables(judged.measured, model)
    yield from histogram_table(judged.measured, model)
    yield from lookup_table(model)
    yield from waves_table(calibration.measured, ceilings)
    yield from model_table(folder / f"{arguments.models}.json", model)
    others = sorted(path for path in folder.glob("points*.json") if path.stem != points)
    for path in others:
        yield from agreement_table(judged, _of_this_gpu(path, ceilings.gpu), path.name)


def _of_this_gpu(path: Path, gpu: GPU) -> Measurements:
    measurements = read_measurements(path)
    if measurements.gpu != gpu:
        raise ValueError(
            f"{path}: measured on {measurements.gpu}, the ceilings on {gpu}; measure both on one GPU"
        )
    return measurements


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m perf_model", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with the points and models measured on one GPU")
    parser.add_argument("--ceilings", type=Path, help="file of the GPU's ceilings")
    parser.add_argument("--calibration", type=Path, help="file of the GPU's measured kernels")
    parser.add_argument("--points", default="points", help="file of measured points, without .json")
    parser.add_argument("--models", default="models", help="file of measured models, without .json")
    arguments = parser.parse_args()
    try:
        for line in _lines(arguments):
            sys.stdout.write(line + "\n")
    except (CeilingsError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
