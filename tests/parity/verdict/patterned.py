"""Tensors that fail, and the patterns that explain them."""

import numpy as np
import torch

from parity.verdict.distances import Distance
from parity.verdict.patterns import FailedTensor, explain

GARBAGE = 1e3
EXACT = Distance(0.0, 0.0, 0.0)


def failed(oracle, port, counted=None, limit=1e-9, dtype=torch.float32):
    limits = limit if isinstance(limit, Distance) else Distance(limit, limit, limit)
    mask = np.ones(oracle.shape, bool) if counted is None else counted
    return FailedTensor(oracle, port, mask, limits, [f"axis {a}" for a in range(oracle.ndim)], dtype)


def explained(oracle, port, counted=None, **options):
    return explain(failed(oracle, port, counted, **options))


def normal(*shape, seed=5):
    return np.random.default_rng(seed).normal(size=shape)


def ragged(shape, lengths):
    """Mask of the first positions of each row."""
    rows = np.arange(shape[1]) < np.array(lengths)[:, None]
    return np.broadcast_to(rows.reshape(*rows.shape, *[1] * (len(shape) - 2)), shape).copy()
