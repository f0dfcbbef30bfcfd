"""The comparison of the arguments of one call, see `parity.verdict.arguments`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch

from parity.base.precision import dtype_name
from parity.capture.arguments import Argument, Received
from parity.capture.names import TapName
from parity.verdict.axes import is_regrouped, like
from parity.verdict.distances import Distance
from parity.verdict.elements import is_integer
from parity.verdict.evidence import Evidence, Results
from parity.verdict.judgement import SHAPE, ArgumentDifference
from parity.verdict.patterns import FailedTensor, all_at, explain, named_axes
from parity.verdict.rule import Verdict, judge
from parity.verdict.tolerance import Tolerated

EXACT = Distance(0.0, 0.0, 0.0)
"""The limit of integers, booleans and infinite elements."""
Excluded = Callable[[torch.Tensor], np.ndarray | None]
"""From a tensor to the mask of its elements that depend on a discontinuity; None for none."""


class View(Protocol):
    """Another form of tensors."""

    def of(self, port: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
        """The port's tensor in the reference's form."""


class ArgumentJudge:
    """Judges the arguments of one call. The parameters are those of `judge_arguments`."""

    def __init__(
        self,
        evidence: Evidence,
        results: Results,
        call: str,
        received: Received,
        with_floats: bool,
        excluded: Excluded,
        tolerated: Tolerated,
    ) -> None:
        self._evidence = evidence
        self._port = results.received
        self._call = call
        self._received = received
        self._with_floats = with_floats
        self._excluded = excluded
        self._tolerated = tolerated

    def difference(
        self,
        name: str,
        reference: Argument | None,
        port: Argument | None,
        view: View | None = None,
    ) -> ArgumentDifference | None:
        """The difference of one argument; None if it is right, or not compared.

        Args:
            name: Name of the argument.
            reference, port: The argument on both sides.
            view: A view of the port's tensor; None for the tensor as it is.
        """
        if port is None:
            return _missing(name, reference, "port")
        if reference is None:
            return _missing(name, port, "reference")
        if not reference.tensor or not port.tensor:
            return self._other_than_tensors(name, reference, port)
        if reference.origin and reference.origin == port.origin and not self._is_parameter(port):
            return None
        theirs, ours = self._evidence.reference.argument(reference), self._port.argument(port)
        if view is not None:
            ours = view.of(ours, theirs)
        if self._evidence.squeeze:
            ours = like(ours, theirs)
        if is_regrouped(tuple(ours.shape), tuple(theirs.shape)):
            ours = ours.reshape(theirs.shape)
        # An integer is the same in more bits.
        is_of_type = ours.dtype == theirs.dtype or (is_integer(ours) and is_integer(theirs))
        if text := _other_shape(theirs, ours):
            values = self._of_common_shape(name, reference, port, theirs, ours) if is_of_type else None
            if values is None:
                return ArgumentDifference(name, "form", text)
            return replace(values, kind="broadcast", text=f"{text}, {values.text}", is_exact=False)
        if not is_of_type:
            text = f"{dtype_name(ours.dtype)} in place of {dtype_name(theirs.dtype)}"
            return ArgumentDifference(name, "form", text)
        return self._of_values(name, reference, port, theirs, ours)

    def _of_common_shape(
        self, name: str, reference: Argument, port: Argument, theirs: torch.Tensor, ours: torch.Tensor
    ) -> ArgumentDifference | None:
        """The difference of two tensors of which one broadcasts to the other; None if there is none."""
        shape = _common_shape(theirs, ours)
        if shape is None:
            return None
        return self._of_values(name, reference, port, theirs.expand(shape), ours.expand(shape))

    def _of_values(
        self, name: str, reference: Argument, port: Argument, theirs: torch.Tensor, ours: torch.Tensor
    ) -> ArgumentDifference | None:
        """The difference of two tensors of one shape and kind of type; None if there is none."""
        is_exact = not theirs.dtype.is_floating_point
        failed = self._failed(name, theirs, ours) if is_exact or self._with_floats else None
        if failed is None:
            return None
        tensor, wrong = failed
        count, total = int(wrong.sum()), int(tensor.counted.sum())
        text = f"{count} of {total} elements{all_at(wrong, tensor.axes)}"
        return ArgumentDifference(
            name,
            "value",
            text if count else "all elements by a little",
            is_exact,
            (*self._passed_instead(reference, port, ours), *explain(tensor)),
            tensor,
        )

    def other_shape(self, reference: Argument | None, port: Argument | None) -> str:
        """The shapes of both sides' tensors as they are, in words; empty if they are equal or no tensors."""
        if reference is None or port is None or not (reference.tensor and port.tensor):
            return ""
        return _other_shape(self._evidence.reference.argument(reference), self._port.argument(port))

    def _is_parameter(self, port: Argument) -> bool:
        return port.origin in self._port.call_inputs and not TapName.parse(port.origin).argument

    def _other_than_tensors(
        self, name: str, reference: Argument, port: Argument
    ) -> ArgumentDifference | None:
        if reference.other and port.other:
            texts = reference.constant, port.constant
            if reference.other != port.other or None in texts or len(set(texts)) == 1:
                return None
            return ArgumentDifference(name, "value", _instead(reference, port))
        if not any((reference.tensor, reference.other, port.tensor, port.other)):
            if self._same_constant(reference, port):
                return None
            return ArgumentDifference(name, "value", _instead(reference, port))
        # A number may stand for a tensor of one element, and a class for its tensors.
        sides = {bool(side.tensor): side for side in (reference, port)}
        is_absent = len(sides) == 2 and not sides[False].other and sides[False].constant is None
        return ArgumentDifference(name, "absent" if is_absent else "form", _instead(reference, port))

    def _same_constant(self, reference: Argument, port: Argument) -> bool:
        ours, theirs = port.constant, reference.constant
        if isinstance(ours, (int, float)) and isinstance(theirs, (int, float)):
            # A number counts as rounded to the tested precision.
            roundoff = self._evidence.precision.unit_roundoff if isinstance(theirs, float) else 0.0
            equal = ours == theirs or (math.isnan(ours) and math.isnan(theirs))
            return equal or abs(ours - theirs) <= roundoff * abs(theirs) < math.inf
        return type(ours) is type(theirs) and ours == theirs

    def _failed(
        self, name: str, reference: torch.Tensor, port: torch.Tensor
    ) -> tuple[FailedTensor, np.ndarray] | None:
        """The compared tensors and the mask of the wrong elements; None if the port's tensor is right."""
        shape = tuple(reference.shape)
        mask, excluded = self._evidence.mask(shape), self._excluded(reference)
        counted = np.ones(shape, dtype=bool) if mask is None else np.broadcast_to(mask, shape).copy()
        if excluded is not None:
            counted &= ~excluded
        # NaN of both sides is no difference. The results behind it are judged.
        counted &= ~(reference.isnan() & port.isnan()).numpy()
        differs = (reference != port).numpy() & counted
        if not differs.any():
            return None
        axes = named_axes(shape, self._evidence.batch_size, self._evidence.valid)
        theirs, ours = (side.to(torch.float64).numpy() for side in (reference, port))
        finite = np.isfinite(theirs)
        oracle = self._oracle(name)
        is_exact = not reference.dtype.is_floating_point or bool((differs & ~finite).any())
        if oracle is not None and oracle.shape != reference.shape:
            oracle = oracle.expand(shape) if _common_shape(oracle, reference) == shape else None
        if is_exact or oracle is None:
            return FailedTensor(theirs, ours, counted, EXACT, axes, port.dtype), differs
        counted &= finite
        taps = list(self._evidence.reference.tensors)[: self._received.finished]
        before = self._evidence.modules(taps[-1], isolated=False) if taps else 0
        verdict = judge(
            oracle,
            reference,
            port,
            self._evidence.precision,
            self._received.longest_sum_before,
            counted,
            modules=before + 1,
        )
        if verdict.passed or self._is_tolerated(verdict):
            return None
        # Elements that are not finite are equal here; their differences are not defined.
        exact, ours = (np.where(finite, values, 0.0) for values in (oracle.double().numpy(), ours))
        # Few rows give chance much room: causes would fit in it, and wrong elements would be right.
        limit = verdict.bound.limit(verdict.reference, 1.0) if verdict.loses_half_of_digits else verdict.limit
        failed = FailedTensor(exact, ours, counted, limit, axes, port.dtype)
        return failed, failed.wrong

    def _is_tolerated(self, verdict: Verdict) -> bool:
        """Whether an error that the case tolerates, before this call or in its results, is as large."""
        carried = self._tolerated.before(self._received.finished).error
        own = self._evidence.tolerated(self._call, TapName.parse(self._call).path)
        return bool(carried) and verdict.port.l2 <= max(carried, own)

    def _oracle(self, name: str) -> torch.Tensor | None:
        run = self._evidence.oracle_received
        arguments = run.arguments[self._call].arguments if self._call in run.arguments else ()
        return next((run.argument(argument) for argument in arguments if argument.name == name), None)

    def _passed_instead(self, reference: Argument, port: Argument, ours: torch.Tensor) -> Iterator[str]:
        """The known tensor that the port passes in the argument's place."""
        for other in self._received.arguments:
            if other.tensor:
                tensor = self._evidence.reference.argument(other)
                if tensor.dtype == ours.dtype and torch.equal(tensor, ours):
                    yield f"equals the reference's {other.name}"
                    return
        if port.origin and reference.origin:
            is_same = port.origin == reference.origin
            with_other = "with other values" if is_same else f"in place of {reference.origin}"
            yield f"is {port.origin} {with_other}"


def _other_shape(reference: torch.Tensor, port: torch.Tensor) -> str:
    shapes = tuple(port.shape), tuple(reference.shape)
    return "" if shapes[0] == shapes[1] else f"{SHAPE} {shapes[0]} in place of {shapes[1]}"


def _common_shape(first: torch.Tensor, second: torch.Tensor) -> tuple[int, ...] | None:
    """The shape of one of two tensors to which the other one broadcasts; None without one."""
    try:
        shape = torch.broadcast_shapes(first.shape, second.shape)
    except RuntimeError:
        return None
    # A third shape may have far more elements than both.
    return tuple(shape) if shape in (first.shape, second.shape) else None


def _missing(name: str, present: Argument, side: str) -> ArgumentDifference | None:
    """The difference of an argument that the module of one side alone has; ``side`` is the other one."""
    if present.is_default:
        return None
    kind = "signature" if present.tensor and side == "port" else "form"
    return ArgumentDifference(name, kind, f"the {side}'s module has no such argument")


def _instead(reference: Argument, port: Argument) -> str:
    return f"{_shown(port)} in place of {_shown(reference)}"


def _shown(argument: Argument) -> str:
    if argument.tensor:
        return "a tensor"
    if not argument.other:
        return repr(argument.constant)
    return argument.other if argument.constant is None else f"{argument.other} {argument.constant}"
