"""The cost of quantisation by module, which is another question than whether the port is right.

    python benchmarks/quantisation_cost.py [--case dlrm_tiny_int8] [--seeds 3] [--budget 0.01]

The truth is the float64 model without quantisation, of the same float32 weights and inputs. The table has the
distance of two float32 references from it: the quantised one and the one without quantisation. A distance is
relative, in the Euclidean norm, over the elements of all seeds. A budget is the largest accepted distance.
The program names the first module beyond it, in the order in which modules return, and then exits with 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cases.configured import ConfiguredCase  # noqa: E402, the project runs from its checkout
from cases.shipped import load_case  # noqa: E402
from parity.base.errors import UserError  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from parity.inputs.weights import case_weights  # noqa: E402
from parity.runners.oracle.float64 import Float64Runner  # noqa: E402
from parity.runners.torch.eager import TorchRunner  # noqa: E402
from parity.verdict.distances import Oracle  # noqa: E402

Taps = Mapping[str, torch.Tensor]


def without_quantisation(case: ConfiguredCase) -> ConfiguredCase:
    """The same case with no module quantised.

    Raises:
        UserError: The case quantises nothing.
    """
    if not getattr(case.model, "quantised", {}):
        raise UserError("--case", case.name, "quantises nothing", "name a case with quantised modules")
    return case.quantised({})


def taps_of(case: ConfiguredCase) -> tuple[Taps, Taps, Taps]:
    """Results by module: of the truth, of the quantised reference, and of the float32 reference."""
    plain = without_quantisation(case)
    weights, _ = case_weights(plain)
    (inputs,) = case.make_inputs().inputs
    results = []
    for runner, model in (
        (Float64Runner(), plain),
        (TorchRunner(torch.device("cpu")), case),
        (TorchRunner(torch.device("cpu")), plain),
    ):
        runner.load(model, PRECISIONS["fp32"], weights)
        results.append(runner.run_tapped(inputs.arrays).tensors)
    return tuple(results)


def costs(runs: Iterable[tuple[Taps, Taps, Taps]]) -> dict[str, tuple[float, float]]:
    """The distances of the quantised and the float32 reference by tap, in the order of the modules' returns.

    Taps that the truth lacks, such as codes, have no cost.
    """
    runs = list(runs)

    def joined(side: int, tap: str) -> np.ndarray:
        return torch.cat([run[side][tap].double().reshape(-1) for run in runs]).numpy()

    rows = {}
    for tap, tensor in runs[0][0].items():
        if tensor.is_floating_point():
            truth = Oracle(joined(0, tap))
            rows[tap] = tuple(truth.distance(joined(side, tap)).l2 for side in (1, 2))
    return rows


def first_beyond(rows: Mapping[str, tuple[float, float]], budget: float) -> str | None:
    """The first tap whose quantised result lies beyond the budget, or is no number."""
    return next((tap for tap, (quantised, _) in rows.items() if not quantised <= budget), None)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The cost of quantisation by module.")
    parser.add_argument("--case", default="dlrm_tiny_int8", help="a case with quantised modules")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds of inputs and weights")
    parser.add_argument("--budget", type=float, help="largest accepted distance of a module")
    options: Any = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}; give at least 1")
    try:
        case = load_case(options.case)
        rows = costs(taps_of(case.with_overrides(seed=case.seed + seed)) for seed in range(options.seeds))
    except UserError as error:
        parser.error(str(error))
    print("| module | quantised | float32 |\n|---|---|---|")
    for tap, (quantised, plain) in rows.items():
        print(f"| {tap} | {quantised:.2e} | {plain:.2e} |")
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
