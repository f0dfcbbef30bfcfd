"""Whether a reference is a function of its inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from parity.base.errors import UserError

SAME = 1e-7
"""Largest relative difference of two float64 runs. Sums in another order, as of a GPU, differ by far less."""


def require_same(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> None:
    """Require that two float64 runs of a reference on the same inputs have the same outputs.

    Args:
        first: Results of the first run by name, the outputs among them.
        second: The outputs of the second run by name.

    Raises:
        UserError: An output differs. Nothing can be compared with such a model.
    """
    for name, other in second.items():
        difference = _difference(first[name], other)
        if difference > SAME:
            raise UserError(
                "reference",
                name,
                f"differs by {difference:.2g} of its size in a second run on the same inputs: the PyTorch "
                "model draws random numbers, or keeps something from one call to the next",
                "pass such numbers and states as inputs",
            )


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The relative difference of two results in the Euclidean norm; infinite for other shapes."""
    if one.shape != other.shape:
        return math.inf
    if torch.equal(one, other):
        return 0.0
    if not one.is_floating_point():
        return float((one != other).double().mean())
    is_same = (one == other) | (one.isnan() & other.isnan())
    distance, size = torch.linalg.norm((one - other)[~is_same]), torch.linalg.norm(one[one.isfinite()])
    return (
        float(distance / size) if bool(distance.isfinite()) and bool(size) else float(not bool(is_same.all()))
    )
