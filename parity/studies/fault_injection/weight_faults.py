"""Faults in weights: every parameter and buffer of the port, by operators that know no model.

A change has one of three relative sizes: four units of round-off, one half, and their geometric mean. The
first is the smallest change that rounding cannot undo in any element.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from parity.base.precision import PRECISIONS, Precision
from parity.studies.fault_injection.faults import Fault

Tensors = Mapping[str, torch.Tensor]
LARGE = 0.5


@dataclass(frozen=True)
class WeightFault(Fault):
    """A change of weights; `target` is the parameter's name.

    Attributes:
        change: The changed tensors by name, from all weights.
        names: Names of the changed tensors.
    """

    change: Callable[[Tensors], dict[str, torch.Tensor]]
    names: tuple[str, ...]

    def apply(self, weights: Tensors, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """`weights` with the change. Changed tensors are rounded to `dtype` again."""
        changed = self.change(weights)
        return dict(weights) | {
            name: tensor.to(dtype).to(weights[name].dtype) if tensor.is_floating_point() else tensor
            for name, tensor in changed.items()
        }


def sizes(precision: Precision) -> dict[str, float]:
    """Relative sizes of a change, by name."""
    small = 4 * precision.unit_roundoff
    return {"small": small, "middle": math.sqrt(small * LARGE), "large": LARGE}


def weight_faults(weights: Tensors, stale: Tensors, precision: Precision) -> list[WeightFault]:
    """Every fault of every parameter.

    Args:
        weights: The port's weights, rounded to the precision.
        stale: Weights of another seed.
        precision: The tested precision, for the sizes.
    """
    faults = []
    for name, tensor in weights.items():
        for operator, detail, change in _changes(name, tensor, precision):
            faults.append(
                WeightFault(operator, name, detail, lambda w, c=change, n=name: {n: c(w[n])}, (name,))
            )
        if not torch.equal(stale[name].to(tensor.dtype), tensor):
            faults.append(
                WeightFault("weight: stale", name, "another seed", lambda _, n=name: {n: stale[n]}, (name,))
            )
        if (twin := _twin(name, weights)) is not None:
            faults.append(
                WeightFault(
                    "weight: swapped between layers",
                    name,
                    twin,
                    lambda w, a=name, b=twin: {a: w[b], b: w[a]},
                    (name, twin),
                )
            )
    return faults + _whole_layers(weights)


Change = tuple[str, str, Callable[[torch.Tensor], torch.Tensor]]


def _changes(name: str, tensor: torch.Tensor, precision: Precision) -> Iterator[Change]:
    if tensor.is_floating_point():
        for label, size in sizes(precision).items():
            yield "weight: scaled", label, lambda t, s=size: t * (1.0 + s)
            yield "weight: element bumped", label, lambda t, s=size: _bumped(name, t, s)
        yield "weight: sign flipped", "all", torch.neg
        if precision.unit_roundoff < PRECISIONS["bf16"].unit_roundoff:
            yield "weight: stored narrower", "bf16", lambda t: t.to(torch.bfloat16).to(t.dtype)
        if tensor.ndim == 1:
            yield "weight: bias dropped", "zero", torch.zeros_like
            yield "weight: bias doubled", "twice", lambda t: 2.0 * t
    elif tensor.dtype == torch.bool:
        yield "weight: element bumped", "flipped", lambda t: _flipped(name, t)
        yield "weight: sign flipped", "all", torch.logical_not
    else:
        yield "weight: element bumped", "the next integer", lambda t: _bumped_integer(name, t)
    for axis, label in enumerate(("rows", "columns")[: tensor.ndim]):
        if tensor.shape[axis] > 1:
            yield f"weight: {label} swapped", "two", lambda t, a=axis: _swapped(name, t, a)
    if tensor.ndim == 2 and tensor.shape[0] == tensor.shape[1] > 1:
        yield "weight: transposed", "square", lambda t: t.T.contiguous()


def _generator(name: str) -> np.random.Generator:
    """Random numbers of a parameter, the same in every run."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))


def _place(name: str, tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(_generator(name).integers(tensor.numel()), tensor.shape))


def _bumped(name: str, tensor: torch.Tensor, size: float) -> torch.Tensor:
    """One element moved by `size` of the largest."""
    changed = tensor.clone()
    changed[_place(name, tensor)] += size * float(tensor.abs().max())
    return changed


def _bumped_integer(name: str, tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    place = _place(name, tensor)
    changed[place] = (changed[place] + 1) % (int(tensor.max()) + 1)
    return changed


def _flipped(name: str, tensor: torch.Tensor) -> torch.Tensor:
    changed = tensor.clone()
    changed[_place(name, tensor)] ^= True
    return changed


def _swapped(name: str, tensor: torch.Tensor, axis: int) -> torch.Tensor:
    a, b = (int(i) for i in _generator(name).choice(tensor.shape[axis], 2, replace=False))
    order = torch.arange(tensor.shape[axis])
    order[[a, b]] = order[[b, a]]
    return tensor.index_select(axis, order)


def _whole_layers(weights: Tensors) -> list[WeightFault]:
    """Faults that swap all weights of a numbered layer with those of the next layer of the same shapes."""
    layers: dict[tuple[str, str], dict[str, str]] = {}
    for name in weights:
        for number in re.finditer(r"(?<=\.)\d+(?=\.)", name):
            layer = layers.setdefault((name[: number.start()], number[0]), {})
            layer[name[number.end() :]] = name
    faults = []
    for (stem, number), roles in layers.items():
        other = layers.get((stem, str(int(number) + 1)), {})
        same = other.keys() == roles.keys() and all(
            weights[roles[role]].shape == weights[other[role]].shape for role in roles
        )
        if same and len(roles) > 1:
            swap = {roles[role]: other[role] for role in roles} | {other[role]: roles[role] for role in roles}
            faults.append(
                WeightFault(
                    "weight: whole layers swapped",
                    f"{stem}{number}",
                    str(int(number) + 1),
                    lambda w, pairs=swap: {a: w[b] for a, b in pairs.items()},
                    tuple(swap),
                )
            )
    return faults


def _twin(name: str, weights: Tensors) -> str | None:
    """The next parameter of the same shape whose name differs in numbers only; None without one."""
    role = re.sub(r"\d+", "#", name)
    shape = weights[name].shape
    twins = [
        other
        for other in weights
        if re.sub(r"\d+", "#", other) == role
        and weights[other].shape == shape
        and not torch.equal(weights[other], weights[name])
    ]
    later = [other for other in twins if list(weights).index(other) > list(weights).index(name)]
    return later[0] if later else None
