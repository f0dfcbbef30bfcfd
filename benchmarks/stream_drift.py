"""The drift of a stream whose cache is in low precision: the error of every step against float64.

    python benchmarks/stream_drift.py [--case hstu_ml1m] [--steps 2000] [--capacity 64] [--budget 0.1]

The float32 reference appends items one by one; half of the steps keep their item. After each step the cached
numbers of every position are rounded: to fp16 or bf16, or to codes of int8 or fp8 with a scale for each
position and tensor. The truth is the float64 full forward with the same window. Errors are relative, in the
Euclidean norm over all rows.

Growth is the root mean square error of the last quarter of the steps over that of the first quarter behind
a full cache. The growth of a cache that drifts rises with the number of steps. Without drift its square is a
quotient of two means of n squared errors. With the mean m and the standard deviation s of a squared error,
and w steps that share a cache, it is below 1 + 3 sqrt(2 w / n) s / m.

The program names the first tensor, in the order of computation, whose error exceeds the budget in any step.
It exits with 1 for a growth beyond its bound, or an error beyond the budget.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.output_file import output_file  # noqa: E402, the project runs from its checkout
from cases.shipped import load_case  # noqa: E402
from parity.base.errors import UserError  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from parity.inputs.weights import case_weights  # noqa: E402
from parity.studies.streaming.sides import ReferenceSide  # noqa: E402
from parity.studies.streaming.truth import Place, Truth  # noqa: E402
from reference.quantisers import LARGEST, round_to_codes  # noqa: E402

ROWS = 4
LEAST = 8
"""Least steps behind a full cache."""
Rounding = Callable[[torch.Tensor], torch.Tensor]


def _to_codes(numbers: str) -> Rounding:
    def rounded(cached: torch.Tensor) -> torch.Tensor:
        largest = cached.abs().amax(-1, keepdim=True)
        scale = torch.where(largest > 0.0, largest / LARGEST[numbers], 1.0)
        return round_to_codes(cached / scale, numbers)[0] * scale

    return rounded


ROUNDINGS: dict[str, Rounding] = {
    "fp32": lambda cached: cached,
    "fp16": lambda cached: cached.half().float(),
    "bf16": lambda cached: cached.bfloat16().float(),
    "int8": _to_codes("int8"),
    "fp8": _to_codes("fp8"),
}
"""Roundings of a cached tensor (B, C, X) by name."""


class LowPrecisionSide(ReferenceSide):
    """The float32 reference of streams, whose cache is rounded after each step."""

    rounding: Rounding

    def _append(self, arguments: dict[str, Any]) -> tuple[Any, list]:
        outputs, state = super()._append(arguments)
        return outputs, [self.rounding(part) if part.is_floating_point() else part for part in state]


def errors_of(truth: Truth, rounding: Rounding) -> Iterator[dict[str, float]]:
    """By step, the relative error of each floating-point tensor in the order of computation."""
    side = LowPrecisionSide(truth.streams, truth.weights, torch.float32, truth.stream.rows, truth.capacity)
    side.rounding = rounding
    per_item = truth.streams.positions_per_item
    begun = np.zeros(truth.stream.rows, dtype=np.int64)
    for step in truth.stream.steps:
        results = side.append(truth.streams.arguments(truth.stream, begun, step))
        place = Place(begun * per_item, step.new * per_item, step.entering * per_item)
        exact = truth.taps(truth.oracle, place)
        yield {
            name: float((results[name].double() - tensor).norm() / tensor.norm())
            for name, tensor in exact.items()
            if tensor.is_floating_point()
        }
        begun = begun + step.entering


def growth(errors: np.ndarray, full: int, shared: int) -> tuple[float, float]:
    """The growth of an error over the steps behind a full cache, and its bound without drift.

    Args:
        errors: (n,) error by step.
        full: Number of steps until the caches of all rows are full.
        shared: Steps that share a cache's positions.
    """
    squares = np.square(errors[full:])
    quarter = len(squares) // 4
    first, last = squares[:quarter], squares[-quarter:]
    spread = squares.std() / squares.mean()
    bound = 1.0 + 3.0 * np.sqrt(2.0 * shared / quarter) * spread
    return float(np.sqrt(last.mean() / first.mean())), float(np.sqrt(bound))


def first_beyond(errors: dict[str, np.ndarray], budget: float) -> tuple[str, int] | None:
    """The first tensor with an error beyond the budget, and the step; None without one."""
    for name, values in errors.items():
        beyond = np.flatnonzero(~(values <= budget))
        if beyond.size:
            return name, int(beyond[0])
    return None


Tables = dict[str, dict[str, np.ndarray]]


def measured(case: str, steps: int, capacity: int, roundings: list[str]) -> tuple[Tables, int]:
    """Errors by rounding, tensor and step; and the steps until all caches are full. Raises `UserError`."""
    model = load_case(case)
    streams = model.streams()
    if not 0 < capacity <= streams.width:
        raise UserError("--capacity", capacity, "does not fit the model", f"give 1 to {streams.width}")
    stream = streams.draw((1,) * ROWS, steps, (1,), seed=0)
    positions = np.cumsum([step.entering for step in stream.steps], axis=0) * streams.positions_per_item
    full = int(np.searchsorted(positions.min(axis=1), capacity))
    if steps < full + LEAST:
        raise UserError("--steps", steps, "hardly fills the cache", f"give at least {4 * capacity + LEAST}")
    truth = Truth(streams, case_weights(model)[0], PRECISIONS["fp32"], stream, capacity)
    tables = {}
    for name in roundings:
        errors = list(errors_of(truth, ROUNDINGS[name]))
        tables[name] = {tap: np.array([step[tap] for step in errors]) for tap in errors[0]}
    return tables, full


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The drift of a stream with a cache in low precision.")
    parser.add_argument("--case", default="hstu_ml1m", help="a case with streams")
    parser.add_argument("--steps", type=int, default=2000, help="appended items, half of which stay")
    parser.add_argument("--capacity", type=int, default=64, help="positions in the cache")
    parser.add_argument("--caches", default=",".join(ROUNDINGS), help="types of the cache")
    parser.add_argument("--budget", type=float, help="largest accepted error of a tensor in a step")
    parser.add_argument("--out", type=output_file, help="a JSON file for all errors by step")
    options: Any = parser.parse_args(arguments)
    names = options.caches.split(",")
    if unknown := [name for name in names if name not in ROUNDINGS]:
        parser.error(f"--caches: {unknown[0]} is unknown; use {', '.join(ROUNDINGS)}")
    try:
        tables, full = measured(options.case, options.steps, options.capacity, names)
    except UserError as error:
        parser.error(str(error))
    print("| cache | tensor | median error | largest error | growth | bound |\n|---|---|---|---|---|---|")
    drifts = False
    for name, table in tables.items():
        for tap, errors in table.items():
            own, bound = growth(errors, full, 2 * options.capacity)
            drifts |= own > bound
            median, largest = np.median(errors), errors.max()
            print(f"| {name} | {tap} | {median:.1e} | {largest:.1e} | {own:.2f} | {bound:.2f} |")
    if options.out is not None:
        content = {name: {tap: list(e) for tap, e in table.items()} for name, table in tables.items()}
        options.out.write_text(json.dumps(content) + "\n")
    if options.budget is not None:
        for name, table in tables.items():
            place = first_beyond(table, options.budget)
            text = "no tensor" if place is None else f"first {place[0]}, at step {place[1]}"
            print(f"\n{name}: {text} beyond the budget of {options.budget:g}")
            drifts |= place is not None
    return int(drifts)


if __name__ == "__main__":
    sys.exit(main())
