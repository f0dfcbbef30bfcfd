"""The cost of quantisation by module, which is another question than whether the port is right.

    python benchmarks/quantisation_cost.py [--case dlrm_tiny_int8] [--seeds 3] [--budget 0.01]
    python benchmarks/quantisation_cost.py --case hstu_ml1m --policy FILE --data u.data --weights FILE

The truth is the float64 model without quantisation, of the same float32 weights and inputs. The table has the
distance of two float32 references from it: the quantised one and the one without quantisation. A distance is
relative, in the Euclidean norm, over the elements of all batches that count. A budget is the largest accepted
distance. The program names the first module beyond it, in the order in which modules return, and then exits
with 1.

With recorded data that have labels, a second table has the task's metrics of both references, and the 95 %
paired bootstrap interval of their difference. The first batches calibrate the scales, unless the weights have
some. Without data, every seed has weights, inputs and a calibration of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.output_file import output_file  # noqa: E402, the project runs from its checkout
from cases.calibration import counted  # noqa: E402
from cases.configured import ConfiguredCase  # noqa: E402
from cases.shipped import load_case  # noqa: E402
from parity.base.errors import UserError  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from parity.base.precision_policy import read_policy  # noqa: E402
from parity.case import Batches  # noqa: E402
from parity.inputs.weights import case_weights, export  # noqa: E402
from parity.runners.oracle.float64 import Float64Runner  # noqa: E402
from parity.runners.torch.eager import TorchRunner  # noqa: E402
from parity.verdict.task_metrics.evaluation import difference_interval  # noqa: E402

Taps = Mapping[str, torch.Tensor]
Runs = Iterable[tuple[Taps, Taps, Taps]]
CALIBRATION_BATCHES = 2
"""Recorded batches that scales of inputs follow from."""


def quantised(case: ConfiguredCase, policy: Path | None, calibration: str | None) -> ConfiguredCase:
    """The case under a policy, or as its file has it. Raises `UserError` if it then quantises nothing."""
    if policy is not None:
        case = case.quantised(read_policy(policy).schemes)
    if calibration is not None:
        case = case.with_sizes({"model.calibration": calibration})
    if not getattr(case.model, "quantised", {}):
        raise UserError("--case", case.name, "quantises nothing", "give a --policy with schemes")
    return case


def taps_of(case: ConfiguredCase, batches: Batches, checkpoint: Path | None = None) -> Iterator:
    """Results by module of every batch: of the truth, the quantised reference, and the float32 reference."""
    plain = case.quantised({})
    weights, _ = case_weights(plain, checkpoint)
    inputs = [batch.arrays for batch in batches.inputs]
    scaled = case.calibrated(weights, inputs[:CALIBRATION_BATCHES])
    cpu = torch.device("cpu")
    sides = [
        (Float64Runner(), plain, weights),
        (TorchRunner(cpu), case, scaled),
        (TorchRunner(cpu), plain, weights),
    ]
    for runner, model, own in sides:
        runner.load(model, PRECISIONS["fp32"], own)
    for arrays in inputs:
        masks = case.valid_rows(arrays)
        yield tuple(
            {tap: counted(tensor, masks) for tap, tensor in runner.run_tapped(arrays).tensors.items()}
            for runner, _, _ in sides
        )


def costs(runs: Runs) -> dict[str, tuple[float, float]]:
    """The distances of the quantised and the float32 reference by tap, in the order of the modules' returns.

    Taps that the truth lacks, such as codes, have no cost.
    """
    squares: dict[str, np.ndarray] = {}
    for truth, *sides in runs:
        for tap, tensor in truth.items():
            if not tensor.is_floating_point():
                continue
            exact = tensor.double()
            parts = [float((side[tap].double() - exact).square().sum()) for side in sides]
            own = np.array([*parts, float(exact.square().sum())])
            squares[tap] = squares.get(tap, 0.0) + own
    return {
        tap: tuple(float(np.sqrt(part / own[-1])) if own[-1] else 0.0 for part in own[:-1])
        for tap, own in squares.items()
    }


def first_beyond(rows: Mapping[str, tuple[float, float]], budget: float) -> str | None:
    """The first tap whose quantised result lies beyond the budget, or is no number."""
    return next((tap for tap, (quantised, _) in rows.items() if not quantised <= budget), None)


class Metrics:
    """The task's metrics of both references over recorded batches.

    Args:
        case: The case with a task, without quantisation.
        weights: Weights without scales.
        batches: Inputs with labels.
    """

    def __init__(self, case: ConfiguredCase, weights: Taps, batches: Batches) -> None:
        with tempfile.TemporaryDirectory() as folder:
            export(weights, Path(folder) / "weights")
            self._task = case.task(Path(folder) / "weights", PRECISIONS["fp32"])
        self._batches = batches
        self._rows: list[list[np.ndarray]] = [[], []]
        self._truth: list[np.ndarray] = []

    def watch(self, runs: Runs) -> Runs:
        """The same runs, whose outputs count."""
        pairs = zip(self._batches.inputs, self._batches.labels, strict=True)
        for (inputs, labels), run in zip(pairs, runs, strict=True):
            self._truth.append(self._task.truth(labels.arrays))
            for rows, taps in zip(self._rows, run[1:], strict=True):
                output = taps[self._task.output].double().numpy()
                rows.append(self._task.rows(output, labels.arrays, inputs.arrays))
            yield run

    def table(self) -> dict[str, tuple[float, float, tuple[float, float] | None]]:
        """By metric: quantised, float32, and the interval of quantised less float32; None without one."""
        truth = np.concatenate(self._truth)
        own, plain = (np.concatenate(rows) for rows in self._rows)
        return {
            metric.name: (
                float(metric.over(own, truth)),
                float(metric.over(plain, truth)),
                difference_interval(metric, truth, plain, own)[0],
            )
            for metric in self._task.metrics
            if not metric.undefined(truth)
        }


def measured(options: Any) -> tuple[dict, dict]:
    """The tables of modules and of metrics. Raises `UserError`."""
    case = load_case(options.case)
    if options.batch is not None:
        case = case.with_overrides(batch_size=options.batch)
    case = quantised(case, options.policy, options.calibration)
    if options.data is None:
        seeded = [case.with_overrides(seed=case.seed + seed) for seed in range(options.seeds)]
        runs = (run for own in seeded for run in taps_of(own, own.make_inputs(), options.weights))
        return costs(runs), {}
    batches = case.recorded(case.read(options.data))
    runs = taps_of(case, batches, options.weights)
    plain = case.quantised({})
    metrics = Metrics(plain, case_weights(plain, options.weights)[0], batches)
    return costs(metrics.watch(runs)), metrics.table()


def show(rows: Mapping[str, tuple[float, float]], metrics: Mapping[str, tuple]) -> None:
    """Print both tables in Markdown."""
    print("| module | quantised | float32 |\n|---|---|---|")
    for tap, (own, plain) in rows.items():
        print(f"| {tap} | {own:.2e} | {plain:.2e} |")
    if metrics:
        print("\n| metric | quantised | float32 | 95 % interval of the difference |\n|---|---|---|---|")
    for name, (own, plain, interval) in metrics.items():
        text = "none" if interval is None else f"{interval[0]:+.2e} to {interval[1]:+.2e}"
        print(f"| {name} | {own:.5f} | {plain:.5f} | {text} |")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The cost of quantisation by module.")
    parser.add_argument("--case", default="dlrm_tiny_int8", help="a case")
    parser.add_argument("--policy", type=Path, help="a policy file with schemes, in place of the case's own")
    parser.add_argument("--calibration", help="the rule of scales, in place of the case's own")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds of inputs and weights")
    parser.add_argument("--data", type=Path, help="recorded data, in place of synthetic inputs")
    parser.add_argument("--weights", type=Path, help="a checkpoint, in place of initial weights")
    parser.add_argument("--batch", type=int, help="rows or users of a batch")
    parser.add_argument("--budget", type=float, help="largest accepted distance of a module")
    parser.add_argument("--out", type=output_file, help="a JSON file for both tables")
    options: Any = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}; give at least 1")
    try:
        rows, metrics = measured(options)
    except UserError as error:
        parser.error(str(error))
    show(rows, metrics)
    if options.out is not None:
        options.out.write_text(json.dumps({"modules": rows, "metrics": metrics}, indent=1) + "\n")
    if options.budget is None:
        return 0
    beyond = first_beyond(rows, options.budget)
    if beyond is None:
        print(f"\nno module lies beyond the budget of {options.budget:g}")
        return 0
    print(f"\nfirst module beyond the budget of {options.budget:g}: {beyond}, {rows[beyond][0]:.2e}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
