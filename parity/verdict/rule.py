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
number of these rows (`parity.verdict.distances`), and K the number of rounding samples
(`parity.runners.oracle.rounding`). The errors of the reference, of the port and of each sample have m degrees
of freedom each. The square root of a quantile of their F distribution is factor(m, (K + 1) m), see
`parity.verdict.sampling_error`, and

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

Modules alone, modules inside the model
---------------------------------------
For a module on its own, n is its longest sum; for the same tap inside the model, the longest of all modules
before. Behind c modules the port may lose the floor in each, and a reference of few elements may be exact by
chance in all of them. Floor and constant therefore grow with sqrt(c).

A module that only moves data (a lookup, a mask, a reshape) has n = 0 and k = floor = 0: its port must be
equal bit for bit. Integers and booleans must be equal everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from parity.base.precision import Precision
from parity.verdict.bound import Bound, bound_for
from parity.verdict.distances import Distance, Oracle, carrying_rows, compared_rows
from parity.verdict.row_errors import RowErrors
from parity.verdict.sampling_error import (
    RoundingSamples,
    SampledErrors,
    expected_error,
    shared_scale_error,
)
from parity.verdict.sensitivity import Rows, min_detectable_error

WORST_ELEMENTS = 5
"""Number of the worst elements in a verdict."""
BLOCK_ELEMENTS = 4096
"""Elements of a block in the search for the worst."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a tap: its index and its value in the three results."""

    index: tuple[int, ...]
    oracle: float
    reference: float
    port: float


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

    @property
    def passed(self) -> bool:
        return self.status == "PASS"

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
    """Judge one tap.

    Args:
        oracle: The float64 result (or the exact integers), any shape.
        reference: The reference's result at the tested precision, same shape.
        port: The port's result at the tested precision; its shape and dtype must be the reference's. An
            element that is the same infinity on all three sides is right.
        precision: The tested precision.
        longest_sum: Terms of the longest sum inside the module; 0 for a module without arithmetic.
        valid: Boolean mask of the valid elements, broadcastable to the shape; None for all.
        boundary: Boolean mask of elements within round-off of a discontinuity; None for none.
        modules: Number of modules with arithmetic on the way to the result.
        rounding_samples: Results of the oracle under random roundings; None without samples.
        by_row: Whether to return the errors by row.
    """
    bound = bound_for(precision, longest_sum, modules)
    mismatch = _mismatch(oracle, reference, port)
    if mismatch:
        return failure(mismatch, bound)
    counted = np.ones(tuple(reference.shape), dtype=bool) & (True if valid is None else valid)
    excluded = 0
    if boundary is not None:
        excluded = int((counted & boundary).sum())
        counted &= ~boundary
    if not counted.any():
        return failure("nothing to compare: the tensor has no valid element", bound)
    if not reference.dtype.is_floating_point:
        return _judge_exact(oracle, reference, port, counted, excluded, bound)

    # Only compared elements become float64: the whole tensor may be many times as large.
    o, r, p = (_compared(side, counted) for side in (oracle, reference, port))
    # Such as a logit that a mask sets to minus infinity. An overflow is finite in the oracle.
    infinite = np.isinf(o) & (o == r) & (o == p)
    if infinite.any():
        counted[counted] = ~infinite
        o, r, p = (side[~infinite] for side in (o, r, p))
        if not o.size:
            return failure("nothing to compare: every element is infinite", bound)
    non_finite = _non_finite_reason(o, r, p)
    if non_finite:
        return failure(non_finite, bound)
    truth = Oracle(o)
    err_ref, err_port = truth.distance(r), truth.distance(p)
    carrying = carrying_rows(oracle.to(torch.float64).numpy(), counted)
    rows = carrying.count or 1.0  # zeros are one number
    sampled = rounding_samples.errors(truth, counted) if rounding_samples else SampledErrors()
    sampled = sampled.of_equal_rows(carrying.repeats)
    limit = bound.limit(expected_error(err_ref, rows, sampled), rows)
    reasons = _excesses(err_port, limit)
    if longest_sum == 0 and not np.array_equal(p, r):
        reasons.insert(0, "the port differs from the reference although the module only moves data")
    if reasons:
        detectable = math.nan
    else:
        detectable = min_detectable_error(truth, p, limit) if longest_sum else 0.0
    return Verdict(
        status="FAIL" if reasons else "PASS",
        reason="; ".join(reasons),
        reference=err_ref,
        port=err_port,
        limit=limit,
        min_detectable_error=detectable,
        checked=o.size,
        boundary=excluded,
        bound=bound,
        worst=_worst(np.abs(p - o), counted, o, r, p),
        row_errors=RowErrors.of(p - o, r - o, counted) if by_row and longest_sum and not reasons else None,
        lasting_limit=bound.lasting(shared_scale_error(err_ref, rows, sampled)),
        rows=Rows.of(compared_rows(counted), carrying.count),
    )


def _mismatch(oracle: torch.Tensor, reference: torch.Tensor, port: torch.Tensor) -> str:
    """The reason why shapes or types forbid a comparison; empty if they match."""
    if port.shape != reference.shape:
        return f"shape {tuple(port.shape)} differs from the reference's {tuple(reference.shape)}"
    if oracle.shape != reference.shape:
        return f"oracle shape {tuple(oracle.shape)} differs from {tuple(reference.shape)}"
    if port.dtype != reference.dtype:
        return f"dtype {port.dtype} differs from the reference's {reference.dtype}"
    return ""


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


def _judge_exact(
    oracle: torch.Tensor,
    reference: torch.Tensor,
    port: torch.Tensor,
    counted: np.ndarray,
    excluded: int,
    bound: Bound,
) -> Verdict:
    """Judge integers or booleans, which must be equal."""
    index = torch.from_numpy(counted)
    o, r, p = (side[index].to(torch.int64).numpy() for side in (oracle, reference, port))
    checked = o.size
    wrong_port, wrong_ref = int((p != o).sum()), int((r != o).sum())
    reason = f"{wrong_port} of {checked} integers or booleans differ from the oracle" if wrong_port else ""
    if not wrong_port and wrong_ref:
        reason = f"{wrong_ref} of {checked} integers or booleans of the reference differ from the oracle"
    return Verdict(
        status="FAIL" if reason else "PASS",
        reason=reason,
        reference=Distance(wrong_ref / checked, wrong_ref / checked, 0.0),
        port=Distance(wrong_port / checked, wrong_port / checked, 0.0),
        limit=Distance(0.0, 0.0, 0.0),
        min_detectable_error=math.nan if reason else 0.0,
        checked=checked,
        boundary=excluded,
        bound=bound,
        worst=_worst(np.abs(p - o), counted, o, r, p),
    )


def _compared(side: torch.Tensor, counted: np.ndarray) -> np.ndarray:
    """The counted elements as float64. NumPy's masks take a tenth of the time of PyTorch's."""
    if side.dtype is torch.bfloat16:
        # NumPy does not have the type, but has its bits.
        bits = side.view(torch.int16).numpy()[counted]
        return torch.from_numpy(bits).view(torch.bfloat16).to(torch.float64).numpy()
    return side.numpy()[counted].astype(np.float64, copy=False)


def _non_finite_reason(o: np.ndarray, r: np.ndarray, p: np.ndarray) -> str:
    """The reason to refuse non-finite elements; empty if all are finite.

    NaN in all three results fails too: it hides errors.
    """
    counts = {
        side: int((~np.isfinite(values)).sum())
        for side, values in (("oracle", o), ("reference", r), ("port", p))
    }
    if not any(counts.values()):
        return ""
    listed = ", ".join(f"{count} in the {side}" for side, count in counts.items() if count)
    return f"NaN or Inf among the compared elements: {listed}"


def _worst(
    distance: np.ndarray, counted: np.ndarray, o: np.ndarray, r: np.ndarray, p: np.ndarray
) -> tuple[Element, ...]:
    count = min(WORST_ELEMENTS, distance.size)
    order = _largest(distance, count)
    order = order[np.argsort(-distance[order], kind="stable")]
    flat = order if distance.size == counted.size else np.flatnonzero(counted)[order]
    indices = (
        np.stack(np.unravel_index(flat, counted.shape), axis=-1)
        if counted.ndim
        else np.zeros((count, 0), int)
    )
    return tuple(
        Element(tuple(int(i) for i in index), float(o[at]), float(r[at]), float(p[at]))
        for index, at in zip(indices, order, strict=True)
    )


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Positions of the `count` largest values, which lie in the `count` blocks of the largest maxima."""
    blocks = values.size // BLOCK_ELEMENTS
    positions = np.arange(values.size) if blocks <= count else np.arange(blocks * BLOCK_ELEMENTS, values.size)
    if blocks > count:
        whole = values[: blocks * BLOCK_ELEMENTS].reshape(blocks, BLOCK_ELEMENTS)
        chosen = np.argpartition(whole.max(axis=1), -count)[-count:]
        inside = chosen[:, np.newaxis] * BLOCK_ELEMENTS + np.arange(BLOCK_ELEMENTS)
        positions = np.concatenate([inside.ravel(), positions])
    return positions[np.argpartition(values[positions], -count)[-count:]]
