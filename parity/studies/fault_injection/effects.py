"""What a fault that nobody noticed does: nothing, less than the suite may ask for, or something it missed.

s is the spacing of the tested precision's numbers, two units of round-off: a change of a result by less need
not show in it. Every distance is relative to the oracle's norm, in the Euclidean norm and in that of the
largest element, over valid elements. A fault is **equivalent** when this is proved:

* Weights. The float64 oracle gets the same change. The outputs of the modules that have the weight, and of
  those around them, on the inputs that the reference saw, move by at most s.
* Source. Tripy has no float64. Either not one bit of any result changes, of no module alone and of no run of
  the whole model; or two things hold. As a function: the faulty port in float32, on the weights and inputs of
  the tested precision, is at most s further from the float64 oracle than the clean port is in float32. As
  arithmetic: in the tested precision itself it is at most s further from the oracle than the reference, or
  than the clean port where that is further. The first alone would pass a sum that is accumulated in half; the
  second alone would pass, in half, a change that only a wider type can see. In float32 the two are one.

What moves results by more than s is **below the limit** where no result moves by more than its verdict's
limit (`parity.verdict.rule`): that far two correct programs may lie apart. It is counted by itself, and was
not detected. Everything else is **missed**.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from parity.base.precision import PRECISIONS
from parity.capture.captures import ModuleCall
from parity.runners.oracle.float64 import Float64Runner
from parity.runners.tripy.runner import TripyRunner
from parity.studies.fault_injection.faults import Fault, Outcome
from parity.studies.fault_injection.weight_faults import WeightFault
from parity.verdict.comparison import Comparison, Results
from parity.verdict.rule import Verdict

if TYPE_CHECKING:
    from parity.studies.fault_injection.bench import Bench

Tensors = Mapping[str, torch.Tensor]
FUNCTION = PRECISIONS["fp32"]
"""The widest precision that Tripy has: what a change does to the function is seen in it."""


Norms = tuple[float, float]
"""A distance in the Euclidean norm and in that of the largest element."""
Tap = tuple[bool, str]
"""Whether a module was alone, and the tap; a check's name for one."""


@dataclass(frozen=True)
class Effect:
    """What a fault does: how far it moves results, in words what that proves, and the outcome."""

    size: float
    proof: str
    outcome: Outcome


def of(bench: Bench, fault: Fault, homes: set[str], comparison: Comparison, results: Results) -> Effect:
    """The effect of a fault that gave `results`, judged as `comparison`."""
    spacing = 2 * bench.precision.unit_roundoff
    limits = _limits(bench.clean_comparison)
    if isinstance(fault, WeightFault):
        moved = _moved_by_weights(bench, fault, homes)
        return _effect(moved, limits, spacing, "the float64 model moves by")
    if _same_bits(results, bench.clean):
        return Effect(0.0, "not one bit of any result changes", Outcome.EQUIVALENT)
    moved = _excess(comparison, bench.clean_comparison)
    if bench.precision.name == FUNCTION.name or _size(moved) > spacing:
        return _effect(moved, limits, spacing, f"in {bench.precision.name} further from the oracle by")
    return _effect(_moved_by_source(bench, fault, homes), limits, spacing, "in float32 further from it by")


def _effect(moved: Mapping[Tap, Norms], limits: Mapping[Tap, Norms], spacing: float, words: str) -> Effect:
    size = _size(moved)
    proof = f"{words} {size:.2g}, numbers are {spacing:.2g} apart"
    if size <= spacing:
        return Effect(size, proof, Outcome.EQUIVALENT)
    share = max(
        norm / limit if limit else math.inf
        for tap, norms in moved.items()
        for norm, limit in zip(norms, limits[tap], strict=True)
        if norm > 0.0
    )
    below = share <= 1.0
    return Effect(
        size, f"{proof}, {share:.2f} of the limit", Outcome.BELOW_LIMIT if below else Outcome.MISSED
    )


def _size(moved: Mapping[Tap, Norms]) -> float:
    return max((max(norms) for norms in moved.values()), default=0.0)


def _verdicts(comparison: Comparison) -> Iterator[tuple[Tap, Verdict]]:
    for row in comparison.taps:
        for alone, verdict in ((True, row.isolated), (False, row.accumulated)):
            if verdict is not None:
                yield (alone, row.tap), verdict
    for name, verdict in comparison.checks.items():
        yield (False, name), verdict


def _limits(clean: Comparison) -> dict[Tap, Norms]:
    return {tap: (verdict.limit.l2, verdict.limit.largest) for tap, verdict in _verdicts(clean)}


def _same_bits(results: Results, clean: Results) -> bool:
    return all(
        ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
        for ours, theirs in (
            (results.untapped, clean.untapped),
            (results.tapped, clean.tapped),
            (results.isolated, clean.isolated),
            (results.poisoned, clean.poisoned),
            (results.incremental, clean.incremental),
        )
    )


def _excess(comparison: Comparison, clean: Comparison) -> dict[Tap, Norms]:
    """By how much the port is further from the oracle than the reference, or itself without the fault, is."""
    without = dict(_verdicts(clean))
    return {
        tap: (
            faulty.port.l2 - max(faulty.reference.l2, without[tap].port.l2),
            faulty.port.largest - max(faulty.reference.largest, without[tap].port.largest),
        )
        for tap, faulty in _verdicts(comparison)
    }


def _moved_by_weights(bench: Bench, fault: WeightFault, homes: set[str]) -> dict[Tap, Norms]:
    """How far the oracle moves when it gets the same change."""
    oracle = Float64Runner()
    oracle.load(bench.case, bench.precision, fault.apply(bench.weights, bench.precision.dtype))
    moved = {
        (True, name): _distance(bench, name, tensor, bench.evidence.oracle_isolated)
        for call in bench.reached(fault, homes)
        for name, tensor in oracle.run_call(call, bench.reference.call_inputs, bench.arrays).items()
    }
    if "" in homes:
        for name, tensor in oracle.run_tapped(bench.arrays).tensors.items():
            moved[False, name] = _distance(bench, name, tensor, bench.evidence.oracle)
    return moved


def _moved_by_source(bench: Bench, fault: Fault, homes: set[str]) -> dict[Tap, Norms]:
    """How much further from the oracle the port is with the fault than without it, both in float32."""
    port = TripyRunner()
    with bench.faulty(fault, port, FUNCTION):
        errors = dict(_errors(bench, port, bench.reached(fault, homes)))
    clean = bench.clean_errors_fp32
    return {tap: (l2 - clean[tap][0], largest - clean[tap][1]) for tap, (l2, largest) in errors.items()}


def clean_errors(bench: Bench) -> dict[Tap, Norms]:
    """Errors of the port without a fault in float32, every call alone and the whole model."""
    port = TripyRunner()
    port.load(bench.case, FUNCTION, bench.weights)
    return dict(_errors(bench, port, bench.reference.calls))


def _errors(bench: Bench, port: TripyRunner, calls: list[ModuleCall]) -> Iterator[tuple[Tap, Norms]]:
    """Errors of the port, as it is loaded, against the oracle: the calls alone, and the whole model."""
    evidence = bench.evidence
    for call in calls:
        for name, tensor in port.run_call(call, bench.reference.call_inputs, bench.arrays).items():
            yield (True, name), _distance(bench, name, tensor, evidence.oracle_isolated)
    for name, tensor in port.run_tapped(bench.arrays).tensors.items():
        yield (False, name), _distance(bench, name, tensor, evidence.oracle)
    for name, tensor in port.run_incremental(bench.arrays).items():
        of_full = {name: evidence.oracle[evidence.incremental_outputs[name]]}
        yield (False, name), _distance(bench, name, tensor, of_full)


def _distance(bench: Bench, name: str, tensor: torch.Tensor, oracle: Tensors) -> Norms:
    """||tensor - oracle|| / ||oracle|| in both norms, over what the suite compares."""
    truth = oracle[name]
    if tensor.shape != truth.shape:
        return math.inf, math.inf
    keep = bench.evidence.counted(name, tuple(truth.shape))
    wide, exact = (side.to(torch.float64).numpy()[keep] for side in (tensor, truth))
    difference = np.abs(wide - exact)
    if not difference.any():
        return 0.0, 0.0
    if not truth.dtype.is_floating_point or not np.isfinite(difference).all() or not exact.any():
        return math.inf, math.inf
    l2 = np.linalg.norm(difference) / np.linalg.norm(exact)
    return float(l2), float(difference.max() / np.abs(exact).max())
