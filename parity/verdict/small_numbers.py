"""The place of an error in small numbers of an argument, beside large ones that carry its norm.

A moment of 0 in the padding makes a difference of 10^5 hours, and the argument's limit is relative to it.
Where every module is right alone, an error beyond half of the digits has one way left into a module: numbers
that are too small for the norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from parity.verdict.bound import half_of_digits
from parity.verdict.diagnosis import all_right_alone
from parity.verdict.evidence import Evidence, Results
from parity.verdict.judgement import Diagnosis, TapJudgement
from parity.verdict.padding import calls_around, wrong_in_part


def among_small_numbers(
    evidence: Evidence, results: Results, taps: Sequence[TapJudgement], diagnosis: Diagnosis
) -> Diagnosis:
    """The diagnosis of an amplification, with the argument whose small numbers carry its error.

    Small are numbers below half of the digits of the largest one. It is the given diagnosis where rounding
    may be the cause, or the small numbers are right.
    """
    failed = next((tap for tap in taps if tap.tap == diagnosis.tap), None)
    if diagnosis.kind != "amplification" or failed is None or failed.accumulated is None:
        return diagnosis
    if not failed.accumulated.loses_half_of_digits:
        return diagnosis
    share = half_of_digits(failed.accumulated.bound.unit_roundoff)

    def large(tensor: torch.Tensor) -> np.ndarray:
        sizes = np.abs(tensor.to(torch.float64).numpy())
        largest = sizes[np.isfinite(sizes)].max(initial=0.0)
        return ~(sizes <= share * largest)

    around = calls_around(evidence.reference, failed.tap)
    small = replace(evidence, reference=replace(evidence.reference, arguments=around))
    found = wrong_in_part(small, results, large, failed.tap, "small numbers", all_right_alone(taps))
    return found or diagnosis
