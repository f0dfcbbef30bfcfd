"""Verdicts without hand-tuned tolerances.

Three numbers meet at every tap: the float64 oracle `o`, the reference at the tested precision `r`
and the port at that precision `p`, all computed from the same rounded weights and inputs. With

    err_ref = ||r - o|| / ||o||        err_port = ||p - o|| / ||o||

in the Euclidean norm and with the largest absolute element, a tap passes when, in both norms,

    err_port^2 <= (k * err)^2 + floor^2,

where err is err_ref and what luck may add to it, and when the same holds for its gain, the factor common to
all of its elements (see below).

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

The two are independent, and add in squares.

Luck: where few rows carry a result, err_ref is measured on few numbers, and may be small by chance. With
the draws of `parity.runners.oracle.rounding`, which are what roundings alone do to the oracle, the errors of
reference and
draws together have m degrees of freedom each, m being the rows that carry the result (see `carrying_rows`);
the port's has m as well; their ratio follows an F distribution, whose quantile is the factor `luck` (see
`parity.verdict.sampling_error`):

    err = max(err_ref, luck(m, (K + 1) m) * sqrt((err_ref^2 + sum of K draws' err^2) / (K + 1))).

Taps of many rows have no draws, K = 0, and luck(m, m) is near 1. A limit that few rows make wide is seen:
it may make the check BLIND (`parity.verdict.sensitivity`).

The gain is the part of the error that is proportional to the result,

    gain = <p - o, o> / <o, o>.

In half precision a norm of rounding errors hides a factor of 1.01; the gain does not, since independent
roundings cancel in it. Elements of one row, the last axis, may share some (a norm's, a softmax's), rows do
not: over m rows the gain is about err / sqrt(m), a single number, and the floor's part in it is floor /
sqrt(m). Where there are draws the gain is also measured on them, one number each, and the smaller of the
two bounds holds. What all rows share, and what does not cancel, is the rounding of a constant; an operation
has one at most, u:

    gain_port^2 <= k^2 * max(gain_ref^2, bound^2) + floor^2 / m + u^2,
    bound = min(luck(1, (K + 1) m) * e / sqrt(m), luck(1, K + 1) * g),

e and g being the root mean square error and gain of reference and draws.

For a module on its own, n is its longest sum; for the same tap inside the model, the longest of all
that ran before. The floor is what a port may lose where the reference happens to be exact. Inside the
model, behind c modules with arithmetic, it may have lost that in each of them while the reference, where
few elements carry a result, was lucky throughout: floor and constant grow with sqrt(c). What only
moves data (a lookup, a mask, a reshape: no arithmetic, n = 0) has k = floor = 0: its port must be equal
bit for bit. Integers and booleans must be equal everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from parity.base.precision import Precision
from parity.verdict.distances import Distance, Oracle, carrying_rows
from parity.verdict.sampling_error import Drawn, Draws, expected
from parity.verdict.sensitivity import smallest_noticed

ROUNDINGS_PER_OPERATION = 4
WORST_ELEMENTS = 5


@dataclass(frozen=True)
class Bound:
    """`err_port^2 <= (k * err)^2 + floor^2`, with the facts that k and floor follow from."""

    k: float
    floor: float
    longest_sum: int
    unit_roundoff: float

    def limit(self, expected: Distance, rows: float) -> Distance:
        """The largest error that the port may have.

        Args:
            expected: What a program with the reference's errors may have by luck, see
            `parity.verdict.sampling_error`. rows: How many rows carry the result.
        """
        constant = self.floor / math.sqrt(ROUNDINGS_PER_OPERATION)
        return Distance(
            l2=math.hypot(self.k * expected.l2, self.floor),
            largest=math.hypot(self.k * expected.largest, self.floor),
            gain=math.hypot(self.k * expected.gain, self.floor / math.sqrt(rows), constant),
        )

    def explain(self) -> str:
        """Where the bound comes from, in one line."""
        if self.longest_sum == 0:
            return "no arithmetic in this module: the port must be equal bit for bit"
        return (
            f"k = {self.k:.3g}, floor = {self.floor:.3g} from unit round-off {self.unit_roundoff:.3g} "
            f"and the longest sum, {self.longest_sum} {'term' if self.longest_sum == 1 else 'terms'}"
        )


def bound_for(precision: Precision, longest_sum: int, modules: int = 1) -> Bound:
    """Derive k and floor for a module whose longest sum has `longest_sum` terms (0: no arithmetic).

    `modules` is how many with arithmetic the result has gone through, itself included.
    """
    if longest_sum == 0:
        return Bound(0.0, 0.0, 0, precision.unit_roundoff)
    stored = precision.unit_roundoff**2
    added = precision.accumulation_roundoff**2
    worst_order = stored + longest_sum * added
    best_order = stored + math.log2(longest_sum + 1) * added
    split = math.sqrt(ROUNDINGS_PER_OPERATION)
    return Bound(
        k=split * math.sqrt(worst_order / best_order),
        floor=split * precision.unit_roundoff * math.sqrt(modules),
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

    `reference` and `port` are distances from the oracle, `limit` is what the port's may be. `status` is PASS
    or FAIL; `reason` is empty for a PASS; `sensitivity` is the smallest relative error that would have
    failed, 0 where equality is asked for and NaN in a FAIL; `checked` counts compared elements and `boundary`
    those excluded because a discontinuity lies within round-off of them.
    """

    status: str
    reason: str
    reference: Distance
    port: Distance
    limit: Distance
    sensitivity: float
    checked: int
    boundary: int
    bound: Bound
    worst: tuple[Element, ...]

    @property
    def passed(self) -> bool:
        return self.status == "PASS"

    @property
    def margin(self) -> float:
        """Port error over its limit, the worst of norms and gain: up to 1 passes; 0 is exact."""
        return max(
            _ratio(self.port.l2, self.limit.l2),
            _ratio(self.port.largest, self.limit.largest),
            _ratio(abs(self.port.gain), self.limit.gain),
        )


def _ratio(error: float, limit: float) -> float:
    if error == 0.0:
        return 0.0
    return error / limit if limit > 0.0 else math.inf


def failure(reason: str, bound: Bound) -> Verdict:
    """A FAIL that needs no numbers: a missing tensor, another shape, another type."""
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
    draws: Draws | None = None,
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
        modules: How many modules with arithmetic the result has gone through.
        draws: What rounding alone gives the oracle; None where there is none.
    """
    bound = bound_for(precision, longest_sum, modules)
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

    # Only what counts is widened: all of it may be many times as much.
    counted = torch.from_numpy(keep)
    o, r, p = (side[counted].to(torch.float64).numpy() for side in (oracle, reference, port))
    non_finite = _non_finite_reason(o, r, p)
    if non_finite:
        return failure(non_finite, bound)

    truth = Oracle(o)
    err_ref, err_port = truth.distance(r), truth.distance(p)
    rows = carrying_rows(oracle.to(torch.float64).numpy(), keep)
    limit = bound.limit(expected(err_ref, rows, draws.errors(truth, keep) if draws else Drawn()), rows)
    over = []
    if longest_sum == 0 and not np.array_equal(p, r):
        over.append("the port differs from the reference although the module only moves data")
    if err_port.l2 > limit.l2:
        over.append(f"relative L2 error {err_port.l2:.3g} exceeds {limit.l2:.3g}")
    if err_port.largest > limit.largest:
        over.append(f"relative max error {err_port.largest:.3g} exceeds {limit.largest:.3g}")
    if abs(err_port.gain) > limit.gain:
        over.append(f"gain {err_port.gain:+.3g} exceeds {limit.gain:.3g}")
    if over:
        sensitivity = math.nan
    else:
        sensitivity = smallest_noticed(truth, p, limit) if longest_sum else 0.0
    return Verdict(
        status="FAIL" if over else "PASS",
        reason="; ".join(over),
        reference=err_ref,
        port=err_port,
        limit=limit,
        sensitivity=sensitivity,
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
    counted = torch.from_numpy(keep)
    o, r, p = (side[counted].to(torch.int64).numpy() for side in (oracle, reference, port))
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
        sensitivity=math.nan if reason else 0.0,
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
