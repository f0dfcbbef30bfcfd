"""The place of an error that the padding carries: the first call whose padded positions have other contents.

Padding does not count as a difference by itself. Where every module is right alone and receives the right
arguments, an error beyond half of the digits has one way left into a module: positions that the mask leaves
out, though the model reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from parity.capture.arguments import Received
from parity.capture.names import TapName
from parity.inputs.masks import bits
from parity.verdict.arguments import judge_arguments
from parity.verdict.bound import half_of_digits
from parity.verdict.diagnosis import argument_of
from parity.verdict.evidence import Evidence, Results
from parity.verdict.judgement import Diagnosis, TapJudgement
from parity.verdict.tolerance import Tolerated


def first_padding_leak(evidence: Evidence, results: Results) -> str:
    """The first tap with a valid element that changes with the content of the padding; empty if none does.

    A module's result without a padded axis may be that of a padded position, as in a loop over positions. It
    counts if another result changes that is known to be valid.
    """
    first = ""
    for tap in evidence.reference.tensors:
        name = TapName.parse(tap)
        if name.appends:
            continue  # The poisoned run is a full forward.
        clean, poisoned = results.tapped.get(tap), results.poisoned.get(tap)
        if clean is None and poisoned is None:
            continue
        if clean is None or poisoned is None or clean.shape != poisoned.shape:
            return first or tap
        valid = evidence.mask(tuple(clean.shape), tap)
        changed = bits(clean) != bits(poisoned)
        if (changed if valid is None else changed & valid).any():
            first = first or tap
            if valid is not None or name.is_output_of(evidence.entry):
                return first
    return ""


def through_padding(
    evidence: Evidence, results: Results, taps: Sequence[TapJudgement], diagnosis: Diagnosis
) -> Diagnosis:
    """The diagnosis of an amplified error, with the argument whose padding may carry it.

    It is the given diagnosis where rounding may be the cause, or no padding differs. Only the calls of the
    failing module and of the modules around it are asked, the outermost first.
    """
    verdict = next(tap.accumulated for tap in taps if tap.tap == diagnosis.tap)
    if verdict is None or verdict.port.l2 <= half_of_digits(verdict.bound.unit_roundoff):
        return diagnosis
    failing = TapName.parse(diagnosis.tap).module_call
    around = {
        call: _without_origins(received)
        for call, received in evidence.reference.arguments.items()
        if TapName.parse(call) == failing or f"{failing.path}.".startswith(f"{TapName.parse(call).path}.")
    }

    def counts(tensor: torch.Tensor) -> np.ndarray:
        mask = evidence.mask(tuple(tensor.shape))
        return np.ones(tensor.shape, dtype=bool) if mask is None else mask

    calls = judge_arguments(
        replace(evidence, reference=replace(evidence.reference, arguments=around), valid={}),
        results,
        len(evidence.reference.tensors),
        with_floats=True,
        excluded=counts,
        tolerated=Tolerated(),
    )
    for call in calls:
        wrong = call.wrong
        if wrong is not None and wrong.kind == "value" and wrong.failed is not None:
            text = (
                f"{call.call} receives another {wrong.name} in its padding: {wrong.text}; every module "
                f"passes on its own, and no other difference reaches {failing.path}; the code of "
                f"{call.parent or evidence.entry} makes the argument"
            )
            return Diagnosis(
                "between",
                diagnosis.tap,
                text,
                explanation=wrong.explanation,
                code=call.parent,
                argument=argument_of(call, wrong),
            )
    return diagnosis


def _without_origins(received: Received) -> Received:
    """A call whose arguments are compared by their elements, also where both sides take the same result."""
    return replace(received, arguments=tuple(replace(own, origin="") for own in received.arguments))
