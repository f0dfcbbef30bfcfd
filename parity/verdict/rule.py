"""The rule of a verdict: limits from the precision and the longest sum, without hand-tuned tolerances.

Three results of the same rounded weights and inputs meet at every tap: the float64 oracle `o`, the reference
`r` and the port `p`, both at the tested precision. Their errors are

    err_ref = ||r - o|| / ||o||        err_port = ||p - o|| / ||o||,

in the Euclidean norm and with the largest absolute element. A tap passes if, in both norms,

    err_port^2 <= (k * err)^2 + floor^2,

where err is err_ref raised by its sampling error, and if its scale error is within a limit of the same form.

Derivation of k and floor
-------------------------
Both programs compute the same function. Their errors differ only in the number of roundings and in the order
of summation. Let u be the unit round-off of the precision, a that of the accumulator, and n the length of the
longest sum inside the module. Rounding errors behave as independent variables of zero mean (Higham and Mary,
"A new approach to probabilistic rounding error analysis", 2019). A stored result then costs u. A sum costs
sqrt(n) * a if added term by term and sqrt(log2 n) * a if added pairwise. Blocked, vectorised and tensor-core
summation lie between these two. With the worst order in the port and the best order in the reference, the
ratio of their errors is

    sqrt((u^2 + n * a^2) / (u^2 + log2(n + 1) * a^2)).

A program may split one mathematical operation into several correctly rounded ones: SiLU as x * sigmoid(x), a
mean as sum and division, an affine step apart. ROUNDINGS_PER_OPERATION = 4 is the longest such chain in
either program (SiLU: exp, add, reciprocal, multiply). Independent roundings add in squares, hence

    k     = sqrt(ROUNDINGS_PER_OPERATION) * sqrt((u^2 + n a^2) / (u^2 + log2(n + 1) a^2))
    floor = sqrt(ROUNDINGS_PER_OPERATION) * u.

k * err and floor are independent and add in squares. The floor is for a reference that happens to be exact.

Sampling error
--------------
If few rows carry a result or its error, err_ref rests on few numbers and may be small by chance. Let m be the
number of these rows (`parity.verdict.distances`), and K that of rounding samples
(`parity.runners.oracle.rounding`). The errors of reference, port and each sample have m degrees of freedom.
The square root of their F quantile (`parity.verdict.sampling_error`) is factor(m, (K + 1) m), and

    err = max(err_ref, factor(m, (K + 1) m) * sqrt((err_ref^2 + sum of the K samples' err^2) / (K + 1))).

With few rows the limit is wide, and the check may be INSENSITIVE (`parity.verdict.sensitivity`).

Scale error
-----------
The scale error is the component of the error along the result,

    scale_error = <p - o, o> / <o, o>.

In half precision, norms of rounding errors hide a factor of 1.01. The scale error shows it: independent
roundings cancel in it. Elements of a row share some roundings (of a norm, of a softmax), different rows none.
Over m rows the scale error is about err / sqrt(m), one number, and the floor's share of it floor / sqrt(m).
Rounding samples give a second bound, and the smaller bound holds. The rounding of a constant is common to all
rows and does not cancel. An operation has at most one constant, which costs u:

    scale_error_port^2 <= k^2 * max(scale_error_ref^2, bound^2) + floor^2 / m + u^2,
    bound = min(factor(1, (K + 1) m) * e / sqrt(m), factor(1, K + 1) * s),

where e and s are the root mean square error and scale error of the reference and the samples.

Other right programs
--------------------
Rounding may lose a constant in one operation, in all rows, and a later one multiplies this error. Rows then
share more than u. The oracle asks P other right programs (`parity.runners.oracle.programs`), whose rows share
what rows of a program share, if a module alone exceeds the limit of its scale error and neither norm's, or if
every module passes alone and a result inside the model fails. Programs take the place of the samples: err of
each norm, and bound as factor(1, P + 1) * s, are at least theirs.

Modules alone, modules inside the model
---------------------------------------
For a module on its own, n is its longest sum; for the same tap inside the model, the longest of all modules
before. Behind c modules the port may lose the floor in each, and a reference of few elements may be exact by
chance in all of them. Floor and constant therefore grow with sqrt(c).

An oracle of zeros has no size. Where the reference has another result, such as a loss that cancels, both
errors are relative to the reference's: the port may be as far from zero as rounding takes the reference.

A module that only moves data (a lookup, a mask, a reshape) has n = 0 and k = floor = 0: its port must have
the reference's bits. Inside the model, rounded inputs may part both from the oracle. Integers and booleans
must be equal everywhere, under the choices of the port that rounding explains (`parity.verdict.choices`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from parity.base.precision import Precision
from parity.inputs.masks import same_where_valid
from parity.verdict.bound import Bound, bound_for, half_of_digits
from parity.verdict.distances import Distance
from parity.verdict.elements import (
    Element,
    compared,
    mismatch_reason,
    non_finite_reason,
    other_integers_reason,
    worst_elements,
)
from parity.verdict.expectation import Expectation
from parity.verdict.row_errors import RowErrors
from parity.verdict.sampling_error import RoundingSamples
from parity.verdict.sensitivity import Rows, min_detectable_error


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one tensor, with every number that it rests on.

    Attributes:
        status: PASS or FAIL.
        reason: Reason of a FAIL; empty for a PASS.
        reference, port: Distances of the reference and of the port from the oracle.
        limit: Largest distance that the port may have.
        min_detectable_error: Smallest relative error that fails; 0 if equality is required, NaN in a FAIL.
        checked: Number of compared elements.
        boundary: Number of elements that are excluded because they lie within round-off of a discontinuity.
        bound: Bound that the limit follows from.
        worst: Elements of the port with the largest absolute errors, the worst first.
        row_errors: Errors of port and reference by row, if asked for, of a PASS.
        lasting_limit: Part of the scale error's limit that no number of rows lowers.
        rows: Compared rows.
        tolerated: Reason of a FAIL that the case's tolerance makes a PASS, or empty.
        ties: Number of integers and booleans that differ from the oracle's own, as rounding explains.
    """

    status: Literal["PASS", "FAIL"]
    reason: str
    reference: Distance
    port: Distance
    limit: Distance
    min_detectable_error: float
    checked: int
    boundary: int
    bound: Bound
    worst: tuple[Element, ...]
    row_errors: RowErrors | None = None
    lasting_limit: float = 0.0
    rows: Rows = Rows()
    tolerated: str = ""
    ties: int = 0

    @property
    def passed(self) -> bool:
        return self.status == "PASS"

    @property
    def loses_half_of_digits(self) -> bool:
        """Whether the error is larger than rounding explains, or has no number; see `half_of_digits`."""
        return not self.port.l2 <= half_of_digits(self.bound.unit_roundoff)

    @property
    def exceeds_scale_alone(self) -> bool:
        """Whether the scale error is too large, and both norms are within their limits."""
        norms = self.port.l2 <= self.limit.l2 and self.port.largest <= self.limit.largest
        return norms and abs(self.port.scale_error) > self.limit.scale_error

    @property
    def margin(self) -> float:
        """Largest ratio of an error to its limit, over both norms and the scale error; up to 1 passes."""
        return max(
            _ratio(self.port.l2, self.limit.l2),
            _ratio(self.port.largest, self.limit.largest),
            _ratio(abs(self.port.scale_error), self.limit.scale_error),
        )


def _ratio(error: float, limit: float) -> float:
    return 0.0 if error == 0.0 else error / limit if limit > 0.0 else math.inf


def failure(reason: str, bound: Bound) -> Verdict:
    """A FAIL without numbers: a missing tensor, a wrong shape, a wrong type."""
    unknown = Distance(math.nan, math.nan, math.nan)
    return Verdict("FAIL", reason, unknown, unknown, unknown, math.nan, 0, 0, bound, ())


def judge(
    oracle: torch.Tensor,
    reference: torch.Tensor,
    port: torch.Tensor,
    precision: Precision,
    longest_sum: int,
    valid: np.ndarray | None = None,
    boundary: np.ndarray | None = None,
    modules: int = 1,
    rounding_samples: RoundingSamples | None = None,
    by_row: bool = False,
) -> Verdict:
    """Judge one tap of one port: `Standard.judge`, with the bound of `bound_for`."""
    bound = bound_for(precision, longest_sum, modules)
    return Standard(oracle, reference, bound, valid, boundary, rounding_samples, by_row).judge(port)


class Standard:
    """The standard of a tap: the oracle, the reference and the limit, which the ports of all runners share.

    Args:
        oracle: The float64 result (or the exact integers), any shape.
        reference: The reference's result at the tested precision, same shape.
        bound: Bound that the limit follows from.
        valid: Boolean mask of the valid elements, broadcastable to the shape; None for all.
        boundary: Boolean mask of elements within round-off of a discontinuity; None for none.
        rounding_samples: Results of the oracle under random roundings; None without samples.
        by_row: Whether verdicts have the errors by row.
        batch_size: Rows of the batch; 0 if they are unknown.
        programs: Results of other right programs (`parity.runners.oracle.programs`); None not to ask them.
    """

    def __init__(
        self,
        oracle: torch.Tensor,
        reference: torch.Tensor,
        bound: Bound,
        valid: np.ndarray | None = None,
        boundary: np.ndarray | None = None,
        rounding_samples: RoundingSamples | None = None,
        by_row: bool = False,
        batch_size: int = 0,
        programs: RoundingSamples | None = None,
    ) -> None:
        self._oracle, self._reference = oracle, reference
        self._bound, self._batch_size = bound, batch_size
        self._valid, self._boundary = valid, boundary
        self._samples = rounding_samples
        self._by_row = by_row
        self._programs = programs
        self._excluded = 0
        self._judged: list[tuple[torch.Tensor, Verdict]] = []

    def judge(self, port: torch.Tensor) -> Verdict:
        """The verdict on a port's result. Results with the same bits where elements count have the same one.

        Args:
            port: The result at the tested precision; its shape and dtype must be the reference's, after the
                values of integers. An element that is the same infinity on all three sides is right.
        """
        mismatch = mismatch_reason(self._oracle, self._reference, port)
        if mismatch:
            return failure(mismatch, self._bound)
        for judged, verdict in self._judged:
            if same_where_valid(judged, port, self._counted):
                return verdict
        verdict = self._judge(port)
        if verdict.passed and (other := other_integers_reason(self._reference, port)):
            verdict = failure(other, self._bound)
        self._judged.append((port, verdict))
        return verdict

    @functools.cached_property
    def _counted(self) -> np.ndarray:
        """Mask of the compared elements."""
        counted = np.ones(tuple(self._reference.shape), dtype=bool)
        counted &= True if self._valid is None else self._valid
        if self._boundary is not None:
            self._excluded = int((counted & self._boundary).sum())
            counted &= ~self._boundary
        return counted

    @functools.cached_property
    def _values(self) -> tuple[np.ndarray, np.ndarray]:
        """The compared elements of oracle and reference. The whole tensors may be many times as large."""
        return compared(self._oracle, self._counted), compared(self._reference, self._counted)

    @functools.cached_property
    def _is_finite(self) -> bool:
        return all(bool(np.isfinite(side).all()) for side in self._values)

    @functools.cached_property
    def _expectation(self) -> Expectation:
        return self._expected_of(*self._values, self._counted)

    def _expected_of(self, o: np.ndarray, r: np.ndarray, counted: np.ndarray) -> Expectation:
        return Expectation(
            self._oracle, o, r, counted, self._bound, self._samples, self._batch_size, self._programs
        )

    def _judge(self, port: torch.Tensor) -> Verdict:
        counted = self._counted
        if not counted.any():
            return failure("nothing to compare: the tensor has no valid element", self._bound)
        if not self._reference.dtype.is_floating_point:
            return self._judge_exact(port)
        p = compared(port, counted)
        if self._is_finite and np.isfinite(p).all():
            return self._judge_finite(self._expectation, p)
        o, r = self._values
        # Such as a logit that a mask sets to minus infinity. An overflow is finite in the oracle.
        finite = ~(np.isinf(o) & (o == r) & (o == p))
        if not finite.any():
            return failure("nothing to compare: every element is infinite", self._bound)
        o, r, p = o[finite], r[finite], p[finite]
        counted = counted.copy()
        counted[counted] = finite
        non_finite = non_finite_reason(o, r, p)
        if not non_finite:
            return self._judge_finite(self._expected_of(o, r, counted), p)
        failed = failure(non_finite, self._bound)
        if not np.isfinite(o).all() or not np.isfinite(r).all():
            return failed
        return self._without_numbers(failed, self._expected_of(o, r, counted), p)

    def _without_numbers(self, failed: Verdict, expected: Expectation, p: np.ndarray) -> Verdict:
        """A FAIL of the port's NaN or Inf alone: its error has no size, and its limit has one."""
        error = np.abs(p - expected.truth.values)
        error[np.isnan(error)] = math.inf
        return replace(
            failed,
            reference=expected.err_ref,
            limit=expected.limit,
            checked=p.size,
            boundary=self._excluded,
            worst=worst_elements(error, expected.counted, expected.truth.values, expected.reference, p),
            lasting_limit=expected.lasting_limit,
            rows=expected.rows,
        )

    def _judge_finite(self, expected: Expectation, p: np.ndarray) -> Verdict:
        truth, r, counted, limit = expected.truth, expected.reference, expected.counted, expected.limit
        has_arithmetic = self._bound.longest_sum > 0
        # A reference that only moves rounded inputs is as far from the oracle as a right port.
        error = p - (truth.values if has_arithmetic else r)
        scaled = truth.scaled(error)
        err_port = truth.size(scaled)
        reasons = _excesses(err_port, limit)
        if not has_arithmetic and not np.array_equal(p, r):
            reasons.insert(0, "the port differs from the reference although the module only moves data")
        detectable = math.nan if reasons else 0.0
        row_errors = None
        if has_arithmetic and not reasons:
            detectable = min_detectable_error(truth, p, scaled, limit)
            if self._by_row:
                row_errors = RowErrors.of(expected.by_row(error), expected.reference_by_row)
        return Verdict(
            status="FAIL" if reasons else "PASS",
            reason="; ".join(reasons),
            reference=expected.err_ref,
            port=err_port,
            limit=limit,
            min_detectable_error=detectable,
            checked=p.size,
            boundary=self._excluded,
            bound=self._bound,
            worst=worst_elements(np.abs(error), counted, truth.values, r, p),
            row_errors=row_errors,
            lasting_limit=expected.lasting_limit,
            rows=expected.rows,
        )

    def _judge_exact(self, port: torch.Tensor) -> Verdict:
        """Judge integers or booleans, which must be equal."""
        counted = self._counted
        # In their own types: a mask may have hundreds of millions of booleans, and few of them differ.
        o, r, p = (side.numpy()[counted] for side in (self._oracle, self._reference, port))
        checked = o.size
        differs = p != o
        wrong_port, wrong_ref = int(np.count_nonzero(differs)), int(np.count_nonzero(r != o))
        distance = np.abs(p.astype(np.int64) - o.astype(np.int64)) if wrong_port else differs.view(np.int8)
        counted_in_words = f"of {checked} integers or booleans"
        reason = f"{wrong_port} {counted_in_words} differ from the oracle" if wrong_port else ""
        if not wrong_port and wrong_ref:
            reason = f"{wrong_ref} {counted_in_words} of the reference differ from the oracle"
        return Verdict(
            status="FAIL" if reason else "PASS",
            reason=reason,
            reference=Distance(wrong_ref / checked, wrong_ref / checked, 0.0),
            port=Distance(wrong_port / checked, wrong_port / checked, 0.0),
            limit=Distance(0.0, 0.0, 0.0),
            min_detectable_error=math.nan if reason else 0.0,
            checked=checked,
            boundary=self._excluded,
            bound=self._bound,
            worst=worst_elements(distance, counted, o, r, p),
        )


def _excesses(error: Distance, limit: Distance) -> list[str]:
    """The measures that exceed their limit, in words."""
    reasons = []
    if error.l2 > limit.l2:
        reasons.append(f"relative L2 error {error.l2:.3g} exceeds {limit.l2:.3g}")
    if error.largest > limit.largest:
        reasons.append(f"relative max error {error.largest:.3g} exceeds {limit.largest:.3g}")
    if abs(error.scale_error) > limit.scale_error:
        reasons.append(f"scale error {error.scale_error:+.3g} exceeds {limit.scale_error:.3g}")
    return reasons
