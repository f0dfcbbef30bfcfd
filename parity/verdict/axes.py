"""The port's results with the axes of the reference's, where the difference does not count."""

from __future__ import annotations

import itertools
import math
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import replace

import torch

from parity.capture.captures import ModuleCall
from parity.capture.names import TapName
from parity.verdict.evidence import Evidence, Results, shape_of


def aligned(evidence: Evidence, results: Results) -> Results:
    """The results in the reference's shapes, where they differ by axes that do not count.

    Those are neighbouring axes of a module's result that one side merges, its axes of 1 behind the first
    axis, all its axes if the module receives an argument in another order of axes too, and leading axes
    of 1 with `squeeze`. Outputs of the entry keep their axes.
    """
    results = _reordered(evidence, _regrouped(evidence, results))
    if not evidence.squeeze:
        return results
    own = evidence.reference.tensors
    fields = ("untapped", "tapped", "isolated", "poisoned")
    changed = {
        field: {
            name: like(tensor, own[name]) if name in own else tensor
            for name, tensor in getattr(results, field).items()
        }
        for field in fields
    }
    return replace(results, **changed)


def _regrouped(evidence: Evidence, results: Results) -> Results:
    """The results with merged axes as in the reference, and without reading the others."""
    own = evidence.reference.tensors
    changed: dict[str, Mapping[str, torch.Tensor]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for part in ("tapped", "isolated", "poisoned"):
        tensors: Mapping[str, torch.Tensor] = getattr(results, part)
        taps = [tap for tap in tensors if tap in own and not TapName.parse(tap).is_output_of(evidence.entry)]
        pairs = ((tap, shape_of(tensors, tap), shape_of(own, tap)) for tap in taps)
        merged = [tap for tap, *pair in pairs if is_regrouped(*pair) or has_other_ones(*pair)]
        if merged:
            shapes |= {tap: shape_of(own, tap) for tap in merged}
            regrouped = {tap: tensors[tap].reshape(shapes[tap]) for tap in merged}
            changed[part] = ChainMap(regrouped, tensors)  # type: ignore[arg-type]
    return replace(results, regrouped=shapes, **changed) if shapes else results


def _reordered(evidence: Evidence, results: Results) -> Results:
    """The results with axes in the reference's order, of modules that receive them in the port's order.

    A linear layer on channels-last data stands for a convolution of size 1, which has them first.
    """
    own = evidence.reference.tensors
    shapes: dict[str, tuple[int, ...]] = {}
    changed: dict[str, Mapping[str, torch.Tensor]] = {}
    for part in ("tapped", "poisoned"):
        tensors: Mapping[str, torch.Tensor] = getattr(results, part)
        orders = {
            tap: order
            for tap in tensors
            if tap in evidence.kinds and tap in own
            if (order := axes_order(shape_of(tensors, tap), shape_of(own, tap)))
            if _receives_other_axes(evidence, evidence.kinds[tap], results)
        }
        if orders:
            shapes |= {tap: shape_of(own, tap) for tap in orders}
            moved = {tap: with_axes(tensors[tap], order, shapes[tap]) for tap, order in orders.items()}
            changed[part] = ChainMap(moved, tensors)  # type: ignore[arg-type]
    return replace(results, other_axes=shapes, **changed) if shapes else results


def _receives_other_axes(evidence: Evidence, call: ModuleCall, results: Results) -> bool:
    """Whether the port's call receives one of the reference's tensors with its axes in another order."""
    sides = []
    for run in (evidence.reference, results.received):
        received = run.arguments.get(call.tap)
        arguments = received.arguments if received else ()
        tensors = [run.argument(argument) for argument in arguments if argument.tensor]
        sides.append([tuple(tensor.shape) for tensor in tensors if tensor.dtype.is_floating_point])
    theirs, ours = sides
    return any(axes_order(port, reference) for port in ours for reference in theirs)


def is_regrouped(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two shapes differ, and only by neighbouring axes that one side merges into one.

    Axes of 1 say nothing here. Axes in another order, such as (6, 10) and (10, 6), are no merged ones.
    """
    first, second = ([size for size in side if size != 1] for side in (shape, other))
    if first == second or math.prod(first) != math.prod(second):
        return False
    while first and second:
        few, many = (first, second) if first[0] >= second[0] else (second, first)
        size, product = few.pop(0), 1
        while many and product < size:
            product *= many.pop(0)
        if product != size:
            return False
    return True


def has_other_ones(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two shapes differ, and only by axes of 1 behind their first axis."""
    first, second = ([size for size in side[1:] if size != 1] for side in (shape, other))
    return shape != other and shape[:1] == other[:1] and first == second


def axes_order(shape: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """The order of the axes above 1 of a shape in which they are those of another one.

    Empty if it is no other order, or not the only one that keeps equal first axes.
    """
    first, second = ([size for size in side if size != 1] for side in (shape, other))
    fixed = int(first[:1] == second[:1] and bool(first))
    sizes = second[fixed:]
    if first == second or sorted(first) != sorted(second) or len(set(sizes)) < len(sizes):
        return ()
    return (*range(fixed), *(first.index(size, fixed) for size in sizes))


def with_axes(tensor: torch.Tensor, order: tuple[int, ...], shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor with its axes above 1 in the order of `axes_order`, in a shape."""
    axes = [size for size in tensor.shape if size != 1]
    return tensor.reshape(axes).permute(order).reshape(shape)


def like(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A tensor in the shape of another one, if they differ by leading axes of 1 alone."""
    return tensor.reshape(other.shape) if _core(tensor.shape) == _core(other.shape) else tensor


def _core(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without its leading axes of 1."""
    return tuple(itertools.dropwhile(lambda size: size == 1, shape))
