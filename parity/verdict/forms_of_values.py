"""Modules that receive and return another form of the reference's tensors in the port, told by values.

A form is an order of axes or a factor. A linear layer on channels-last data stands for a convolution of size
1. Where the axes differ in length, their lengths tell it (`parity.verdict.axes`). Where two are equally
long, such a result has the reference's shape and other elements. A port may also multiply before a linear
layer in place of behind it. Both are no fault where one form explains both sides of the call: an argument is
wrong as it is and right in the form, and so is each wrong result. A result alone in another form is a fault,
and so is an argument alone with a wrong result.

The form has to end inside the module that makes the call: the result of that module is right as it is, or in
another form itself. A transposition that reaches an output is thus a fault where it begins. The check of the
first right result around a factor has to detect a change as large as the factor.

A result of another shape tells by itself that its axes are in another order, though equal lengths leave
several. This order need not end inside a right module, and other calls of the module have it too: the fault
may lie anywhere around.
"""

from __future__ import annotations

import itertools
import math
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from parity.capture.names import TapName
from parity.verdict.arguments import argument_views
from parity.verdict.evidence import Evidence, Results, shape_of
from parity.verdict.judgement import MODEL_OUTPUT, Diagnosis, TapJudgement
from parity.verdict.rule import Verdict
from parity.verdict.standards import Standards

MOST_AXES = 5
"""Axes up to which all orders are tried: their number is the factorial."""


@dataclass(frozen=True)
class Order:
    """An order of axes.

    Attributes:
        axes: The port's first axes in the reference's order. More axes of a tensor keep their places.
    """

    axes: tuple[int, ...]
    words = "they have their axes in another order"

    def of(self, port: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
        """The port's tensor in the reference's form."""
        more = range(len(self.axes), port.ndim)
        return port.permute(*self.axes, *more) if port.ndim >= len(self.axes) else port


@dataclass(frozen=True)
class Factor:
    """A factor of each tensor, which the two tensors tell.

    Attributes:
        evidence: Has the elements that count.
    """

    evidence: Evidence
    words = "they are times a factor"

    def of(self, port: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
        """The port's tensor without its factor."""
        factor = self.between(port, reference)
        return port if factor is None else (port.double() / factor).to(port.dtype)

    def between(self, port: torch.Tensor, reference: torch.Tensor) -> float | None:
        """The factor of the port's tensor with the least squares of errors; None without one."""
        if port.shape != reference.shape or not reference.is_floating_point():
            return None
        counted = torch.isfinite(port) & torch.isfinite(reference)
        mask = self.evidence.mask(tuple(reference.shape))
        if mask is not None:
            counted &= torch.from_numpy(mask)
        ours, theirs = port[counted].double(), reference[counted].double()
        factor = float(ours @ theirs / (theirs @ theirs)) if len(theirs) else 0.0
        return factor if math.isfinite(factor) and factor else None


Form = Order | Factor


def in_forms(evidence: Evidence, results: Results, taps: Sequence[TapJudgement]) -> Results:
    """The results in the reference's form; the same results if no call has another one.

    Args:
        evidence: The evidence of the comparison.
        results: The port's results.
        taps: The judgements on them.
    """
    failing: dict[str, list[TapJudgement]] = {}
    for tap in taps:
        name = TapName.parse(tap.tap)
        if not tap.passed and tap.tap in evidence.kinds and not name.appends:
            failing.setdefault(str(name.module_call), []).append(tap)
    told = _told(evidence, results, failing)
    surroundings = _Surroundings(evidence, taps, told)
    forms: dict[str, Form] = {**told}
    for call in surroundings.contained(failing):
        if call not in told and (form := next(_forms(evidence, results, call, failing[call]), None)):
            forms[call] = form
    factors = {
        tap: factor
        for call, form in forms.items()
        if isinstance(form, Factor)
        for tap in _wrong_inside(failing[call])
        if (factor := form.between(results.tapped[tap], evidence.reference.tensors[tap])) is not None
    }
    calls = surroundings.contained(
        call
        for call in forms
        if all(surroundings.detects(tap.tap, factors[tap.tap]) for tap in failing[call] if tap.tap in factors)
    )
    if not calls:
        return results
    moved = {tap: forms[call] for call in calls for tap in _wrong_inside(failing[call])}
    reference = evidence.reference.tensors
    return replace(
        results,
        tapped=_formed(results.tapped, reference, moved),
        poisoned=_formed(results.poisoned, reference, moved),
        other_axes={
            **results.other_axes,
            **{tap: shape_of(reference, tap) for tap, form in moved.items() if isinstance(form, Order)},
        },
        scaled={tap: factor for tap, factor in factors.items() if tap in moved},
        in_forms={**results.in_forms, **{call: forms[call].words for call in calls}},
    )


def _told(
    evidence: Evidence, results: Results, failing: Mapping[str, Sequence[TapJudgement]]
) -> dict[str, Order]:
    """The orders of axes of calls whose results have other shapes, and are right in the order.

    A call behind an error, which is right in no order, has that of another call of its module.
    """
    own, tensors = evidence.reference.tensors, results.tapped
    told: dict[str, Order] = {}
    possible: dict[str, list[Order]] = {}
    for call, taps in failing.items():
        wrong = [tap for tap in _wrong_inside(taps) if tap in tensors and tap in own]
        pairs = [(shape_of(tensors, tap), shape_of(own, tap)) for tap in wrong]
        if any(ours != theirs for ours, theirs in pairs):
            possible[call] = [*_orders(pairs)]
            form = next(_forms(evidence, results, call, taps), None)
            if isinstance(form, Order):
                told[call] = form
    of_module = {TapName.parse(call).path: order for call, order in told.items()}
    for call, orders in possible.items():
        order = of_module.get(TapName.parse(call).path)
        if order in orders:
            told.setdefault(call, order)
    return told


def _formed(
    tensors: Mapping[str, torch.Tensor], reference: Mapping[str, torch.Tensor], forms: Mapping[str, Form]
) -> Mapping[str, torch.Tensor]:
    """Tensors by tap, some of them in the reference's form."""
    formed = {tap: form.of(tensors[tap], reference[tap]) for tap, form in forms.items() if tap in tensors}
    return ChainMap(formed, tensors)  # type: ignore[arg-type]


def _wrong_inside(taps: Sequence[TapJudgement]) -> list[str]:
    """The taps that fail inside the model, by name."""
    return [tap.tap for tap in taps if tap.accumulated is not None and not tap.accumulated.passed]


class _Surroundings:
    """The modules around calls, with the judgements on their results."""

    def __init__(self, evidence: Evidence, taps: Sequence[TapJudgement], told: Iterable[str] = ()) -> None:
        self._arguments = evidence.reference.arguments
        self._told = frozenset(told)
        self._parents = {TapName.parse(call).path: own.parent for call, own in self._arguments.items()}
        self._wrong: dict[str, set[str]] = {"": set()}
        self._detectable: dict[str, float] = {}
        for tap in taps:
            if tap.accumulated is not None:
                path = "" if tap.kind == MODEL_OUTPUT else tap.path
                wrong = self._wrong.setdefault(path, set())
                wrong |= {str(TapName.parse(name).module_call) for name in _wrong_inside([tap])}
                # A failing result has NaN here.
                detectable = tap.accumulated.min_detectable_error
                self._detectable[path] = min(detectable, self._detectable.get(path, math.inf))

    def _around(self, path: str) -> str:
        """The module that calls a module, or the first one around it that has results to judge."""
        path, passed = self._parents.get(path, ""), {""}
        # A module may be inside of itself.
        while path not in self._wrong and path not in passed:
            passed.add(path)
            path = self._parents.get(path, "")
        return path if path in self._wrong else ""

    def contained(self, calls: Iterable[str]) -> list[str]:
        """Those calls whose form ends inside the module that makes them, and those whose shapes tell it."""
        inside = [call for call in calls if call in self._arguments]
        while True:
            left = [
                call
                for call in inside
                if call in self._told or self._wrong[self._around(TapName.parse(call).path)] <= set(inside)
            ]
            if left == inside:
                return inside
            inside = left

    def detects(self, tap: str, factor: float) -> bool:
        """Whether the first right result around a tap has a check that detects its factor."""
        path, passed = self._around(TapName.parse(tap).path), {""}
        while self._wrong[path] and path not in passed:
            passed.add(path)
            path = self._around(path)
        change = min(abs(factor - 1), abs(1 / factor - 1))
        return self._detectable.get(path, math.inf) < change


def _forms(
    evidence: Evidence, results: Results, call: str, failing: Sequence[TapJudgement]
) -> Iterator[Form]:
    """The forms that explain the arguments of a call, and all its results that fail."""
    tensors, own = results.tapped, evidence.reference.tensors
    wrong = _wrong_inside(failing)
    if any(tap not in tensors or tap not in own for tap in wrong):
        return
    forms: list[Form] = [*_orders([(shape_of(tensors, tap), shape_of(own, tap)) for tap in wrong])]
    if wrong:
        forms.append(Factor(evidence))
    for form in argument_views(evidence, results, call, forms):
        if all(_judged(evidence, tap, form.of(tensors[tap], own[tap])).passed for tap in wrong):
            yield form


def _orders(shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Iterator[Order]:
    """The orders of axes that make shapes of the port the reference's, without the unchanged one.

    Without a wrong result, the module alone fails: it takes the reference's axes for others.
    """
    ranks = {len(shape) for pair in shapes for shape in pair}
    for rank in sorted(ranks) if len(ranks) == 1 else () if ranks else range(2, MOST_AXES + 1):
        if rank <= MOST_AXES:
            for axes in itertools.permutations(range(rank)):
                is_changed = axes != tuple(range(rank))
                if is_changed and all(
                    tuple(ours[axis] for axis in axes) == theirs for ours, theirs in shapes
                ):
                    yield Order(axes)


def _judged(evidence: Evidence, tap: str, port: torch.Tensor) -> Verdict:
    """The verdict on a port's result inside the model, in the reference's form."""
    reference, oracle = evidence.reference.tensors[tap], evidence.oracle.get(tap)
    verdict = Standards(evidence).judge(tap, oracle, reference, port, None)
    # Only elements that depend on a discontinuity elsewhere may leave no verdict, and none are given.
    assert verdict is not None
    return verdict


def in_another_order(
    evidence: Evidence, results: Results, taps: Sequence[TapJudgement], diagnosis: Diagnosis
) -> Diagnosis:
    """The diagnosis of a module whose result is wrong in any order of axes, with the error in its own one.

    Alone, the module takes the reference's axes for its own, and its error tells nothing of the fault.

    Args:
        evidence: The evidence of the comparison.
        results: The port's results.
        taps: The judgements on them.
        diagnosis: The place of the first divergence.
    """
    tap = next((own for own in taps if own.tap == diagnosis.tap), None)
    if diagnosis.kind != "module" or tap is None or tap.isolated is None or tap.isolated.passed:
        return diagnosis
    name, own = tap.tap, evidence.reference.tensors
    call = str(TapName.parse(name).module_call)
    if call in results.in_forms or name not in _wrong_inside([tap]) or name not in results.tapped:
        return diagnosis
    orders = _orders([(shape_of(results.tapped, name), shape_of(own, name))])
    order = next(argument_views(evidence, results, call, orders), None)
    if order is None:
        return diagnosis
    verdict = _judged(evidence, name, order.of(results.tapped[name], own[name]))
    if verdict.passed:
        return diagnosis
    told = f"its arguments have their axes in another order inside the model; there, it has: {verdict.reason}"
    return replace(diagnosis, text=f"{diagnosis.text}; {told}")
