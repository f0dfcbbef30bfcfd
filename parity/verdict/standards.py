"""The standards of a tap, which all runners share, and the share of its elements that may be left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from parity.base.precision import Precision
from parity.verdict.bound import bound_for
from parity.verdict.distances import compared_rows
from parity.verdict.evidence import Evidence
from parity.verdict.rule import Standard, Verdict, failure
from parity.verdict.sampling_error import FALSE_ALARM, RoundingSamples

MAX_BOUNDARY_FRACTION = 0.01
"""Largest share of a tap's own elements that may lie at a discontinuity, over all inputs. A tap fails with so
many of them in a batch that chance has more in at most `FALSE_ALARM` of all batches."""


class Standards:
    """The standards of one tap, inside the model and alone, with which all runners are judged.

    Args:
        evidence: The basis of the verdicts.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._by_kind: dict[bool, Standard] = {}

    def judge(
        self,
        tap: str,
        oracle: torch.Tensor | None,
        reference: torch.Tensor,
        port: torch.Tensor | None,
        contaminated: np.ndarray | None,
        isolated: bool = False,
        sampled_tap: str = "",
    ) -> Verdict | None:
        """The verdict on a port's result. None if all its elements depend on a discontinuity elsewhere.

        One flip early in a sequence reaches every later row of it, and a batch may have no other sequence.
        Another batch then has to judge the tap: without any it is INSENSITIVE.

        Args:
            tap: Name of the tap.
            oracle, reference, port: The three results; None is a missing one.
            contaminated: Mask of the elements that depend on a discontinuity elsewhere, which this port takes
                otherwise than the reference; None for none.
            isolated: Whether the module runs alone.
            sampled_tap: Tap with the rounding samples, if it has another name.
        """
        evidence = self._evidence
        call = evidence.kinds.get(tap) if isolated else None
        precision = evidence.precision_alone(call) if call else evidence.precision
        bound = bound_for(precision, evidence.longest_sum(tap, isolated), evidence.modules(tap, isolated))
        if port is None:
            return failure("missing: the port has no such result", bound)
        if oracle is None:
            return failure("missing: the oracle has no such tap", bound)
        own = evidence.boundary.get(tap)
        boundary = contaminated if own is None else own
        valid = evidence.mask(tuple(reference.shape), sampled_tap or tap)
        counted = np.broadcast_to(True if valid is None else valid, tuple(reference.shape))
        if own is None and boundary is not None and counted.any() and not (counted & ~boundary).any():
            return None
        batch_size = evidence.batch_size

        def standard_with(programs: RoundingSamples | None) -> Standard:
            samples = evidence.rounding_samples(sampled_tap or tap, isolated)
            return Standard(
                oracle, reference, bound, valid, boundary, samples, isolated, batch_size, programs
            )

        standard = self._by_kind.get(isolated)
        if standard is None or boundary is not own:
            standard = standard_with(None)
        if boundary is own:
            self._by_kind[isolated] = standard
        ties = (evidence.ties_isolated if isolated else evidence.ties).get(sampled_tap or tap, 0)
        verdict = standard.judge(port)
        asks = verdict.exceeds_scale_alone if isolated else evidence.among_programs and not verdict.passed
        # Other programs make the oracle's own choices.
        if asks and not ties and (programs := evidence.programs(tap, isolated)):
            verdict = standard_with(programs).judge(port)
        verdict = replace(verdict, ties=ties)
        lost = verdict.boundary / max(1, verdict.boundary + verdict.checked)
        if not verdict.passed or not lost or own is None:
            return verdict
        rows = compared_rows(counted)
        if _chance_of_boundaries(lost, rows) < FALSE_ALARM:
            depend = f"{verdict.boundary} elements depend on a discontinuity, more than"
            return failure(f"{depend} chance has of {MAX_BOUNDARY_FRACTION:.0%} of {rows} rows", bound)
        return verdict


def nothing_left(precision: Precision) -> Verdict:
    """The verdict in place of none, of a check that no other batch judges."""
    reason = "nothing to compare: all elements depend on a discontinuity that the port takes otherwise"
    return failure(reason, bound_for(precision, 1))


def _chance_of_boundaries(share: float, rows: int) -> float:
    """The chance of this share of rows at a discontinuity, or more, if `MAX_BOUNDARY_FRACTION` of all are.

    All elements of a row may have one pre-image, so that rows and not elements are independent.

    Args:
        share: Share of the elements at a discontinuity.
        rows: Number of compared rows.
    """
    # SciPy takes long to import, which a run has while its runners work.
    from scipy import special

    # The binomial tail. The incomplete beta function has it for parts of rows, too.
    return float(special.betainc(share * rows, rows - share * rows + 1.0, MAX_BOUNDARY_FRACTION))
