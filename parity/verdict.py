"""Verdicts without hand-tuned tolerances.

Three numbers meet at every tap: the float64 oracle `o`, the reference at the tested precision `r`
and the port at that precision `p`, all computed from the same rounded weights and inputs. With

    err_ref = ||r - o|| / ||o||        err_port = ||p - o|| / ||o||

in the Euclidean norm and with the largest absolute element, a tap passes when, in both norms,

    err_port <= k * err_ref + floor.

Where k and floor come from
---------------------------
Both programs compute the same function, so their errors differ only in how often they round and in
which order they add. With u the unit round-off of the precision, a that of the accumulator and n the
longest sum inside the module, rounding errors behave as independent zero-mean variables (Higham and
Mary, "A new approach to probabilistic rounding error analysis", 2019): one stored result costs u, a
sum costs sqrt(n) * a if added term by term and sqrt(log2 n) * a if added pairwise, the two extremes
between which blocked, vectorised and tensor-core summation lie. If the port uses the worst order and
the reference the best one, their errors stand in the ratio

    sqrt((u^2 + n * a^2) / (u^2 + log2(n + 1) * a^2)).

One mathematical operation may be split into several correctly rounded ones (SiLU as x * sigmoid(x),
a mean as sum and division, an affine step apart); ROUNDINGS_PER_OPERATION = 4 is the longest such
chain in either program (SiLU: exp, add, reciprocal, multiply), and independent roundings add in
squares, hence

    k     = sqrt(ROUNDINGS_PER_OPERATION) * sqrt((u^2 + n a^2) / (u^2 + log2(n + 1) a^2))
    floor = sqrt(ROUNDINGS_PER_OPERATION) * u.

For a module on its own, n is its longest sum; for the same tap inside the model, the longest of all
that ran before. The floor is what a port may lose where the reference happens to be exact. What only
moves data (a lookup, a mask, a reshape: no arithmetic, n = 0) has k = floor = 0: its port must be equal
bit for bit. Integers and booleans must be equal everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from parity.precision import Precision

ROUNDINGS_PER_OPERATION = 4
WORST_ELEMENTS = 5


@dataclass(frozen=True)
class Bound:
    """`err_port <= k * err_ref + floor`, with the facts that k and floor follow from."""

    k: float
    floor: float
    longest_sum: int
    unit_roundoff: float

    def limit(self, err_ref: float) -> float:
        """The largest error that the port may have, given the reference's, dimensionless."""
        return self.k * err_ref + self.floor

    def explain(self) -> str:
        """Where the bound comes from, in one line."""
        if self.longest_sum == 0:
            return "no arithmetic in this module: the port must be equal bit for bit"
        return (
            f"k = {self.k:.3g}, floor = {self.floor:.3g} from unit round-off {self.unit_roundoff:.3g} "
            f"and the longest sum, {self.longest_sum} terms"
        )


def bound_for(precision: Precision, longest_sum: int) -> Bound:
    """Derive k and floor for a module whose longest sum has `longest_sum` terms (0: no arithmetic)."""
    if longest_sum == 0:
        return Bound(0.0, 0.0, 0, precision.unit_roundoff)
    stored = precision.unit_roundoff**2
    added = precision.accumulation_roundoff**2
    worst_order = stored + longest_sum * added
    best_order = stored + math.log2(longest_sum + 1) * added
    split = math.sqrt(ROUNDINGS_PER_OPERATION)
    return Bound(
        k=split * math.sqrt(worst_order / best_order),
        floor=split * precision.unit_roundoff,
        longest_sum=longest_sum,
        unit_roundoff=precision.unit_roundoff,
    )


@dataclass(frozen=True)
class Element:
    """One element of a tap: its index and its value on the three sides."""

    index: tuple[int, ...]
    oracle: float
    reference: float
    port: float


@dataclass(frozen=True)
class Verdict:
    """The outcome of comparing one tensor, with every number that it rests on.

    Errors are relative to the oracle's norm and dimensionless; `status` is PASS or FAIL; `reason` is
    empty for a PASS; `checked` counts compared elements and `boundary` those excluded because a
    discontinuity lies within round-off of them.
    """

    status: str
    reason: str
    err_ref_l2: float
    err_port_l2: float
    limit_l2: float
    err_ref_max: float
    err_port_max: float
    limit_max: float
    checked: int
    boundary: int
    bound: Bound
    worst: tuple[Element, ...]

    @property
    def passed(self) -> bool:
        return self.status == "PASS"

    @property
    def margin(self) -> float:
        """Port error over its limit, the worse of the two norms: up to 1 passes; 0 is exact."""
        return max(
            _ratio(self.err_port_l2, self.limit_l2),
            _ratio(self.err_port_max, self.limit_max),
        )


def _ratio(error: float, limit: float) -> float:
    if error == 0.0:
        return 0.0
    return error / limit if limit > 0.0 else math.inf


def failure(reason: str, bound: Bound) -> Verdict:
    """A FAIL that needs no numbers: a missing tensor, another shape, another type."""
    nan = math.nan
    return Verdict("FAIL", reason, nan, nan, nan, nan, nan, nan, 0, 0, bound, ())


def judge(
    oracle: torch.Tensor,
    reference: torch.Tensor,
    port: torch.Tensor,
    precision: Precision,
    longest_sum: int,
    valid: np.ndarray | None = None,
    boundary: np.ndarray | None = None,
) -> Verdict:
    """Judge one tap.

    Args:
        oracle: The float64 result (or the exact integers), any shape.
        reference: The reference's result at the tested precision, same shape.
        port: The port's result at the tested precision; its shape and dtype must be the reference's.
        precision: The tested precision.
        longest_sum: Terms of the longest sum inside the module; 0 if it does no arithmetic.
        valid: Boolean mask of the elements that count, broadcastable to the shape; None for all.
        boundary: Boolean mask of elements within round-off of a discontinuity; None for none.
    """
    bound = bound_for(precision, longest_sum)
    if port.shape != reference.shape:
        return failure(
            f"shape {tuple(port.shape)} differs from the reference's {tuple(reference.shape)}", bound
        )
    if oracle.shape != reference.shape:
        return failure(f"oracle shape {tuple(oracle.shape)} differs from {tuple(reference.shape)}", bound)
    if port.dtype != reference.dtype:
        return failure(f"dtype {port.dtype} differs from the reference's {reference.dtype}", bound)

    keep = np.ones(tuple(reference.shape), dtype=bool)
    if valid is not None:
        keep &= valid
    excluded = 0
    if boundary is not None:
        excluded = int((keep & boundary).sum())
        keep &= ~boundary
    checked = int(keep.sum())
    if checked == 0:
        return failure("nothing to compare: the tensor has no valid element", bound)

    if not reference.dtype.is_floating_point:
        return _judge_exact(oracle, reference, port, keep, checked, excluded, bound)

    o = oracle.to(torch.float64).numpy()[keep]
    r = reference.to(torch.float64).numpy()[keep]
    p = port.to(torch.float64).numpy()[keep]
    non_finite = _non_finite_reason(o, r, p)
    if non_finite:
        return failure(non_finite, bound)

    scale_l2, scale_max = float(np.linalg.norm(o)), float(np.abs(o).max())
    err_ref_l2, err_ref_max = _relative(r - o, scale_l2, scale_max)
    err_port_l2, err_port_max = _relative(p - o, scale_l2, scale_max)
    limit_l2, limit_max = bound.limit(err_ref_l2), bound.limit(err_ref_max)
    over = []
    if longest_sum == 0 and not np.array_equal(p, r):
        over.append("the port differs from the reference although the module only moves data")
    if err_port_l2 > limit_l2:
        over.append(f"relative L2 error {err_port_l2:.3g} exceeds {limit_l2:.3g}")
    if err_port_max > limit_max:
        over.append(f"relative max error {err_port_max:.3g} exceeds {limit_max:.3g}")
    return Verdict(
        status="FAIL" if over else "PASS",
        reason="; ".join(over),
        err_ref_l2=err_ref_l2,
        err_port_l2=err_port_l2,
        limit_l2=limit_l2,
        err_ref_max=err_ref_max,
        err_port_max=err_port_max,
        limit_max=limit_max,
        checked=checked,
        boundary=excluded,
        bound=bound,
        worst=_worst(np.abs(p - o), keep, o, r, p),
    )


def _judge_exact(
    oracle: torch.Tensor,
    reference: torch.Tensor,
    port: torch.Tensor,
    keep: np.ndarray,
    checked: int,
    excluded: int,
    bound: Bound,
) -> Verdict:
    o, r, p = (side.to(torch.int64).numpy()[keep] for side in (oracle, reference, port))
    wrong_port, wrong_ref = int((p != o).sum()), int((r != o).sum())
    reason = f"{wrong_port} of {checked} integers or booleans differ from the oracle" if wrong_port else ""
    if not wrong_port and wrong_ref:
        reason = f"{wrong_ref} of {checked} integers or booleans of the reference differ from the oracle"
    fractions = (wrong_ref / checked, wrong_port / checked)
    return Verdict(
        status="FAIL" if reason else "PASS",
        reason=reason,
        err_ref_l2=fractions[0],
        err_port_l2=fractions[1],
        limit_l2=0.0,
        err_ref_max=fractions[0],
        err_port_max=fractions[1],
        limit_max=0.0,
        checked=checked,
        boundary=excluded,
        bound=bound,
        worst=_worst(np.abs(p - o), keep, o, r, p),
    )


def _non_finite_reason(o: np.ndarray, r: np.ndarray, p: np.ndarray) -> str:
    """Why NaN or Inf forbid a verdict, or nothing. A shared overflow is no match either: it hides errors."""
    counts = {
        side: int((~np.isfinite(values)).sum())
        for side, values in (("oracle", o), ("reference", r), ("port", p))
    }
    if not any(counts.values()):
        return ""
    listed = ", ".join(f"{count} in the {side}" for side, count in counts.items() if count)
    return f"NaN or Inf among the compared elements: {listed}"


def _relative(difference: np.ndarray, scale_l2: float, scale_max: float) -> tuple[float, float]:
    l2, largest = float(np.linalg.norm(difference)), float(np.abs(difference).max())
    if scale_max == 0.0:
        # An all-zero oracle has no scale: any difference from it is infinitely wrong.
        return (math.inf if l2 else 0.0), (math.inf if largest else 0.0)
    return l2 / scale_l2, largest / scale_max


def _worst(
    distance: np.ndarray, keep: np.ndarray, o: np.ndarray, r: np.ndarray, p: np.ndarray
) -> tuple[Element, ...]:
    count = min(WORST_ELEMENTS, distance.size)
    order = np.argpartition(distance, -count)[-count:]
    order = order[np.argsort(-distance[order], kind="stable")]
    flat = np.flatnonzero(keep)[order]
    indices = (
        np.stack(np.unravel_index(flat, keep.shape), axis=-1) if keep.ndim else np.zeros((count, 0), int)
    )
    return tuple(
        Element(tuple(int(i) for i in index), float(o[at]), float(r[at]), float(p[at]))
        for index, at in zip(indices, order, strict=True)
    )
