"""Masks of the valid elements of a tensor, and the equality of two tensors there."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch


def valid_elements(
    shape: tuple[int, ...], valid: Mapping[int, np.ndarray], batch_size: int
) -> np.ndarray | None:
    """The valid elements of a tensor. Lengths mask an axis that is as long as a padded one.

    Args:
        shape: Shape of the tensor.
        valid: For each size that a padded axis can have, the (B, size) mask of valid positions.
        batch_size: B.

    Returns:
        A mask that broadcasts to the shape; None if all elements are valid.
    """
    if len(shape) < 2 or shape[0] != batch_size:
        return None
    keep = None
    for axis, size in enumerate(shape[1:], start=1):
        if size in valid:
            extended = [batch_size] + [1] * (len(shape) - 1)
            extended[axis] = size
            rows = valid[size].reshape(extended)
            keep = rows if keep is None else keep & rows
    return keep


def bits(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's elements as integers, so that NaN equals itself and -0.0 differs from 0.0."""
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(integer).numpy()


def same_where_valid(one: torch.Tensor, other: torch.Tensor, keep: np.ndarray | None) -> bool:
    """Whether two tensors are of one shape and type, and equal to the bit where `keep` is."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    changed = bits(one) != bits(other)
    return not bool((changed if keep is None else changed & keep).any())
