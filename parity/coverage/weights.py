"""What weights ask of a port: a tensor of zeros hides a sum, one of ones a product."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from parity.case import Case
from parity.case.patterns import matches_any
from parity.coverage.questions import Coverage, Kind, Question

_ANSWERS = {value: f"an element other than {value}" for value in (0, 1)}
"""By the values that constructors give to biases, gains and statistics."""


def weights_of(case: Case, weights: Mapping[str, torch.Tensor]) -> Coverage:
    """Whether each tensor of floating-point numbers has other values than zeros alone and ones alone.

    Args:
        case: The case. Tensors of its `unused` are left out.
        weights: The reference's state dict.
    """
    coverage = Coverage()
    for name, tensor in weights.items():
        if tensor.is_floating_point() and tensor.numel() and not matches_any(case.unused, name):
            seen = [answer for value, answer in _ANSWERS.items() if _has_another(tensor, value)]
            coverage.add(Question(kind=Kind.WEIGHT, place=name, answers=tuple(_ANSWERS.values())), seen)
    return coverage


def _has_another(tensor: torch.Tensor, value: int) -> bool:
    # Only a tensor that begins like a constant is read as a whole.
    return tensor.reshape(-1)[0].item() != value or bool((tensor != value).any())
