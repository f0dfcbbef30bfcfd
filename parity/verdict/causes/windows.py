"""Changes of windows: another side or kind of padding, another dilation, another pooling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F

from parity.verdict.causes.operations import Change, Operation, changed

DILATIONS = (1, 2, 3, 4)
_PADS = {
    "constant_pad_nd": "constant",
    **{f"reflection_pad{rank}d": "reflect" for rank in (1, 2, 3)},
    **{f"replication_pad{rank}d": "replicate" for rank in (1, 2, 3)},
}
_SIDES: tuple[Callable[[int, int], tuple[int, int]], ...] = (
    lambda before, after: (after, before),
    lambda before, after: ((before + after) // 2, before + after - (before + after) // 2),
    lambda before, after: (before + after, 0),
    lambda before, after: (0, before + after),
)
"""Padding before and after an axis on the other side, on both, or on one alone."""
_MAX_POOLS = {"max_pool2d_with_indices": F.avg_pool2d, "max_pool3d_with_indices": F.avg_pool3d}
_MEAN_POOLS = {"avg_pool2d": F.max_pool2d, "avg_pool3d": F.max_pool3d}


def windows_of(operation: Operation) -> Iterator[Change]:
    """All changes of an operation's windows that are tried."""
    for kind in (_pads, _padded_convolutions, _dilations, _pools):
        yield from kind(operation)


def _pads(operation: Operation) -> Iterator[Change]:
    """Padding on the other side, on both, or of another kind."""
    present = _PADS.get(operation.name)
    if present is None:
        return
    named = operation.named()
    name = "pad" if "pad" in named else "padding"
    pad = list(named[name])
    sides = list(zip(pad[::2], pad[1::2], strict=True))
    for axis, (before, after) in enumerate(sides):
        for other in dict.fromkeys(kind(before, after) for kind in _SIDES):
            if other != (before, after):
                text = f"with a padding of {other} in place of {(before, after)}"
                yield changed(text, {name: [*pad[: 2 * axis], *other, *pad[2 * axis + 2 :]]})
    # An image has one kind of padding on both axes.
    for others in dict.fromkeys(tuple(kind(*own) for own in sides) for kind in _SIDES):
        if sum(other != own for other, own in zip(others, sides, strict=True)) > 1:
            joined = tuple(chain.from_iterable(others))
            yield changed(f"with a padding of {joined} in place of {tuple(pad)}", {name: list(joined)})
    for mode in ("constant", "reflect", "replicate", "circular"):
        if mode != present:
            yield Change(
                f"with padding by {mode} in place of {present}",
                lambda o, mode=mode: F.pad(o.named()["self"], pad, mode),
            )


def _padded_convolutions(operation: Operation) -> Iterator[Change]:
    """The padding of both sides on one of them."""
    named = operation.named()
    if operation.name != "convolution" or named["transposed"]:
        return
    axes = named["weight"].ndim - 2
    padding = _per_axis(named["padding"], axes)
    padded = [axis for axis, size in enumerate(padding) if size]
    for own in dict.fromkeys((*((axis,) for axis in padded), tuple(padded))):
        sizes = [padding[axis] for axis in own]
        for place in (0, 1) if own else ():
            pad = [0, 0] * axes
            for axis, size in zip(own, sizes, strict=True):
                # `F.pad` begins with the last axis.
                pad[2 * (axes - 1 - axis) + place] = 2 * size
            rest = [0 if axis in own else size for axis, size in enumerate(padding)]
            sides = tuple(side for size in sizes for side in ((2 * size, 0), (0, 2 * size))[place])
            both = tuple(size for size in sizes for _ in range(2))
            yield Change(
                f"with a padding of {sides} in place of {both}",
                lambda o, pad=pad, rest=rest: o.run(
                    {"input": F.pad(o.named()["input"], pad), "padding": rest}
                ),
            )


def _dilations(operation: Operation) -> Iterator[Change]:
    """Another dilation, with the padding that keeps the size of the result."""
    named = operation.named()
    if operation.name != "convolution" or named["transposed"]:
        return
    sizes = named["weight"].shape[2:]
    padding, present = (_per_axis(named[name], len(sizes)) for name in ("padding", "dilation"))
    if max(sizes) < 2:
        return
    for dilation in DILATIONS:
        wider = [(dilation - own) * (size - 1) for own, size in zip(present, sizes, strict=True)]
        other = [own + more // 2 for own, more in zip(padding, wider, strict=True)]
        if any(wider) and not any(more % 2 for more in wider) and min(other) >= 0:
            text = f"with a dilation of {dilation} in place of {present[-1]}"
            yield changed(text, {"dilation": [dilation] * len(sizes), "padding": other})


def _pools(operation: Operation) -> Iterator[Change]:
    if operation.name in _MAX_POOLS:
        pool = _MAX_POOLS[operation.name]
        text = "with a pool's mean in place of its maximum"
        yield Change(text, lambda o: (_pooled(pool, o), o.run()[1]))
    if operation.name in _MEAN_POOLS:
        pool = _MEAN_POOLS[operation.name]
        yield Change("with a pool's maximum in place of its mean", lambda o: _pooled(pool, o))


def _pooled(pool: Any, operation: Operation) -> torch.Tensor:
    named = operation.named()
    return pool(
        named["self"],
        named["kernel_size"],
        named["stride"] or None,
        named["padding"],
        ceil_mode=named["ceil_mode"],
    )


def _per_axis(value: list[int], axes: int) -> list[int]:
    return list(value) * axes if len(value) == 1 else list(value)
