"""Changes of a call's arguments: another type, shifted masks and positions, two in each other's place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import torch

from parity.verdict.causes.operations import SHIFTED

MOST_ARGUMENTS = 6
"""Largest number of arguments that are exchanged in pairs."""
COARSER = (torch.float32, torch.float16, torch.bfloat16, torch.int64)
"""Types that a floating-point argument may wrongly have had."""


def changed_arguments(
    arguments: Mapping[str, torch.Tensor],
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """All changes of the arguments that are tried: words, and the changed tensors by name."""
    yield from _exchanged_arguments(arguments)
    for name, tensor in arguments.items():
        if tensor.dtype is torch.bool:
            for axis in range(tensor.ndim):
                for step in (1, -1):
                    text = f"with {name} {SHIFTED} {step:+d} along axis {axis}"
                    yield text, {name: tensor.roll(step, axis)}
            yield f"with {name} inverted", {name: ~tensor}
            # Such as queries for keys.
            for first, second in itertools.combinations(range(tensor.ndim), 2):
                turned = tensor.transpose(first, second)
                if turned.shape == tensor.shape and not torch.equal(turned, tensor):
                    yield f"with axes {first} and {second} of {name} exchanged", {name: turned}
        elif tensor.dtype.is_floating_point:
            yield from _exchanged_parts(name, tensor)
            for other in COARSER:
                rounded = tensor.to(other).to(tensor.dtype)
                if not torch.equal(rounded, tensor):
                    yield f"with {name} as {str(other).removeprefix('torch.')}", {name: rounded}
        else:
            for step in (1, -1):
                yield f"with {name} {SHIFTED} {step:+d}", {name: (tensor + step).clamp(min=0)}
            yield from _exchanged_parts(name, tensor)
            for wide in (torch.int32, torch.float32, torch.float16, torch.bfloat16):
                cast = tensor.to(wide).to(tensor.dtype)
                if not torch.equal(cast, tensor):
                    yield f"with {name} as {str(wide).removeprefix('torch.')}", {name: cast}


def _exchanged_parts(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Both ends of edges, sides of pairs, coordinates, or parts of a complex number in each other's place."""
    for axis in (axis for axis, size in enumerate(tensor.shape) if size == 2):
        other = tensor.flip(axis)
        if not torch.equal(other, tensor):
            yield f"with both parts of {name} along axis {axis} exchanged", {name: other}


def _exchanged_arguments(
    arguments: Mapping[str, torch.Tensor],
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Two arguments of one shape and type in each other's place, or one in both."""
    first = itertools.islice(arguments.items(), MOST_ARGUMENTS)
    for (name, tensor), (other, another) in itertools.combinations(first, 2):
        if (tensor.shape, tensor.dtype) == (another.shape, another.dtype) and not torch.equal(
            tensor, another
        ):
            yield f"with {name} and {other} exchanged", {name: another, other: tensor}
            yield f"with {name} in place of {other}", {other: tensor}
            yield f"with {other} in place of {name}", {name: another}
