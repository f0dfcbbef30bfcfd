"""The effect of an undetected fault on one batch: none, less than the suite may ask for, or a miss.

s is the spacing of the tested precision's numbers, two units of round-off. Rounding may hide a smaller
change. Every distance is relative to the oracle's norm, over valid elements. It is taken in the Euclidean
norm and in that of the largest element. A fault is **equivalent** when one of these is proved:

* Weights. The float64 oracle gets the same change. The modules with the weight, and the modules around them,
  run on the inputs that the reference saw. Their outputs move by at most s.
* Source, same bits. No bit of any result changes, of a module alone or of a run of the whole model.
* Source, by distance. Tripy has no float64, so two proofs replace it. Both compare with the oracle on the
  weights and inputs of the tested precision. In float32, the faulty port is at most s further off than the
  clean port. In the tested precision, it is at most s further off than the reference and the clean port. The
  first alone accepts a sum that is accumulated in half precision. The second alone accepts a change that only
  a wider type shows. In float32 the two are one.

A fault that moves results by more than s is **below the limit** if every result stays within the limit of its
verdict (`parity.verdict.rule`). Two correct programs may be that far apart. The table counts these
faults separately, as undetected. All other faults are **missed**.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from parity.base.precision import Precision
from parity.runners.oracle.float64 import Float64Runner
from parity.runners.tripy.runner import TripyRunner
from parity.studies.fault_injection.batch import WIDEST, BatchBench, Norms, Tap
from parity.studies.fault_injection.faults import Fault, Outcome
from parity.studies.fault_injection.weight_faults import WeightFault
from parity.verdict.comparison import Comparison
from parity.verdict.evidence import Results
from parity.verdict.rule import Verdict


@dataclass(frozen=True)
class Effect:
    """The effect of an undetected fault.

    Attributes:
        size: Largest movement of a result, relative to the oracle's norm.
        proof: The movement in words.
        outcome: EQUIVALENT, BELOW_LIMIT or MISSED.
    """

    size: float
    proof: str
    outcome: Outcome


def effect_of(
    bench: BatchBench, fault: Fault, homes: set[str], comparison: Comparison, results: Results
) -> Effect:
    """The effect of a fault.

    Args:
        bench: The batch without the fault.
        fault: The fault.
        homes: Paths of the modules that contain it.
        comparison: Verdicts with the fault.
        results: Results with the fault.
    """
    spacing = 2 * bench.precision.unit_roundoff
    limits = _limits(bench.clean_comparison)
    if isinstance(fault, WeightFault):
        moved = _moved_by_weights(bench, fault, homes)
        return _effect(moved, limits, spacing, "the float64 model moves by")
    if same_bits(results, bench.clean):
        return Effect(0.0, "not one bit of any result changes", Outcome.EQUIVALENT)
    effect = effect_of_source(bench.precision, comparison, bench.clean_comparison)
    if bench.precision.name == WIDEST.name or effect.size > spacing:
        return effect
    return _effect(_moved_by_source(bench, fault, homes), limits, spacing, "in float32 further from it by")


def effect_of_source(precision: Precision, comparison: Comparison, clean: Comparison) -> Effect:
    """The effect of changed source in the tested precision, from the verdicts with it and without."""
    spacing = 2 * precision.unit_roundoff
    words = f"in {precision.name} further from the oracle by"
    return _effect(_excess(comparison, clean), _limits(clean), spacing, words)


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


def same_bits(results: Results, clean: Results) -> bool:
    """Whether no bit of any result differs."""
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
    """Error of the faulty port less the larger error of the reference and the clean port."""
    without = dict(_verdicts(clean))
    return {
        tap: (
            faulty.port.l2 - max(faulty.reference.l2, without[tap].port.l2),
            faulty.port.largest - max(faulty.reference.largest, without[tap].port.largest),
        )
        for tap, faulty in _verdicts(comparison)
    }


def _moved_by_weights(bench: BatchBench, fault: WeightFault, homes: set[str]) -> dict[Tap, Norms]:
    """Movement of the oracle under the same change of the weights."""
    oracle = Float64Runner()
    oracle.load(bench.case, bench.precision, fault.apply(bench.weights, bench.precision.dtype))
    moved = {
        (True, name): bench.distance(name, tensor, bench.evidence.oracle_isolated[name])
        for call in bench.reached(fault, homes)
        for name, tensor in oracle.run_call(call, bench.reference.call_inputs, bench.arrays).items()
    }
    if "" in homes:
        for name, tensor in oracle.run_tapped(bench.arrays).tensors.items():
            moved[False, name] = bench.distance(name, tensor, bench.evidence.oracle[name])
    return moved


def _moved_by_source(bench: BatchBench, fault: Fault, homes: set[str]) -> dict[Tap, Norms]:
    """Error of the faulty port less that of the clean port, both in `WIDEST`."""
    port = TripyRunner()
    with bench.faulty(fault, port, WIDEST):
        errors = bench.errors(port, bench.reached(fault, homes))
    clean = bench.clean_errors_in_widest
    return {tap: (l2 - clean[tap][0], largest - clean[tap][1]) for tap, (l2, largest) in errors.items()}
