"""Modules of a port on the reference's inputs at other magnitudes.

A softmax without its maximum, a variance as a difference of two means, a sigmoid as a quotient of
exponentials or a bound that is left out is right where numbers are near 1, as drawn ones are. A trained model
has others. Each module runs alone on its recorded floating-point inputs, larger, smaller and far from zero,
next to the reference's module in the tested precision and in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from parity.base.interruption import raisable
from parity.base.precision import Precision
from parity.capture.captures import Capture, ModuleCall
from parity.case import Case
from parity.inputs.masks import valid_elements
from parity.runners.base import Arrays, TapsModules, Tensors
from parity.runners.oracle.float64 import Float64Runner
from parity.runners.torch.eager import TorchRunner

FACTOR = 64.0
"""Sums of sixteen squares of numbers near 1 leave float16 then, and exponentials of 1.4 float32. Scores of an
attention, which are products of two such inputs, stay in float16: many right ports keep them there."""
UNCHANGED = "its inputs"
"""The kind of the trial that tells whether the results of both sides are of one form."""
MOST_PARAMETERS = 1 << 24
"""Models with more parameters are not built twice more, and have no trials."""
MOST_BYTES = 1 << 24
"""Calls that hold more bytes have no trial: float64 would take seconds."""
_ROOM = 8.0
"""The oracle's numbers up to this part of the largest one of the type are compared: sums may end beyond."""


@dataclass(frozen=True)
class Magnitude:
    """The errors of one result at one magnitude.

    Attributes:
        tap: Name of the result.
        kind: The inputs in words.
        port, reference: Relative L2 errors, away from float64; 0 of a port with broken elements.
        broken: Elements of the port that are not finite.
        compared: Elements that are finite in the reference.
    """

    tap: str
    kind: str
    port: float
    reference: float
    broken: int
    compared: int


def magnitudes(
    port: TapsModules,
    case: Case,
    precision: Precision,
    weights: Tensors,
    recorded: Capture,
    calls: Iterable[ModuleCall],
    arrays: Arrays,
) -> Iterator[Magnitude]:
    """Yield the errors of all calls' results at each magnitude.

    A call that raises on one side has none: an input may be of no use at another magnitude.

    Args:
        port: The loaded port.
        case, precision, weights: What it was loaded with.
        recorded: The reference's capture.
        calls: Calls of it.
        arrays: The inputs of the model.
    """
    if sum(tensor.numel() for tensor in weights.values()) > MOST_PARAMETERS:
        return
    reference, oracle = TorchRunner(), Float64Runner()
    for runner in (reference, oracle):
        runner.load(case, precision, weights)
    valid, rows = case.valid_rows(arrays), case.batch_size_of(arrays)
    for call in calls:
        inputs = {key: recorded.call_inputs[key] for key in call.tensor_keys}
        for kind, changed in _changed(inputs, precision).items():
            try:
                sides = (oracle, reference, port)
                exact, theirs, ours = (side.run_call(call, changed, arrays, whole=False) for side in sides)
            except raisable():
                continue
            chooses = _differ_as_integers(exact, ours)
            for tap in exact.keys() & theirs.keys() & ours.keys():
                keep = valid_elements(tuple(exact[tap].shape), valid, rows)
                found = _errors(exact[tap], theirs[tap], ours[tap], keep)
                if found is None:
                    continue
                magnitude = Magnitude(tap, kind, *found)
                # Numbers behind another choice, such as one among equal numbers, are other numbers.
                if magnitude.broken or not chooses:
                    yield magnitude


def _changed(inputs: Tensors, precision: Precision) -> dict[str, Mapping[str, torch.Tensor]]:
    """The inputs, and those at other magnitudes, by the change in words; none without numbers to change."""
    numbers = {key: tensor for key, tensor in inputs.items() if _is_of_numbers(tensor)}
    if not numbers:
        return {}
    # A shift keeps two thirds of the digits of what differs between elements.
    shift = 2.0 ** (round(-math.log2(precision.unit_roundoff)) // 3)
    changes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        UNCHANGED: lambda x: x,
        f"{FACTOR:g} times its inputs": lambda x: x * FACTOR,
        f"its inputs divided by {FACTOR:g}": lambda x: x / FACTOR,
        f"its inputs plus {shift:g} times their largest": lambda x: x + shift * _largest(x),
    }
    return {
        kind: {**inputs, **{key: change(tensor) for key, tensor in numbers.items()}}
        for kind, change in changes.items()
    }


def _differ_as_integers(exact: Tensors, port: Tensors) -> bool:
    """Whether the port has other integers or booleans among the results of a call."""
    return any(
        not torch.equal(exact[tap], port[tap].to(exact[tap].dtype))
        for tap in exact.keys() & port.keys()
        if not exact[tap].dtype.is_floating_point
    )


def _is_of_numbers(tensor: torch.Tensor) -> bool:
    """Whether a tensor has floating-point numbers with a magnitude, and is no mask of two numbers."""
    if not tensor.dtype.is_floating_point:
        return False
    finite = tensor[torch.isfinite(tensor)]
    return bool(finite.numel()) and bool(((finite != finite.min()) & (finite != finite.max())).any())


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor[torch.isfinite(tensor)].abs().max())


def _errors(
    exact: torch.Tensor, reference: torch.Tensor, port: torch.Tensor, keep: np.ndarray | None
) -> tuple[float, float, int, int] | None:
    """The port's and the reference's errors, the broken and the compared elements; None without numbers.

    Padding, which `keep` leaves out, does not count.
    """
    sides = (exact, reference, port)
    if len({side.shape for side in sides}) > 1 or not all(side.dtype.is_floating_point for side in sides):
        return None
    largest = torch.finfo(reference.dtype).max / _ROOM
    compared = torch.isfinite(reference) & (exact.abs() <= largest)
    if keep is not None:
        compared &= torch.from_numpy(keep)
    true = exact[compared].double()
    scale = float(torch.linalg.vector_norm(true))
    if not scale:
        return None
    theirs, ours = (side[compared].double() for side in (reference, port))
    own, of_reference = (float(torch.linalg.vector_norm(side - true)) / scale for side in (ours, theirs))
    broken = int((~torch.isfinite(ours)).sum())
    return own if math.isfinite(own) else 0.0, of_reference, broken, true.numel()
