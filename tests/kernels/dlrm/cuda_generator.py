"""`torch.randn(..., device="cuda")` after `torch.manual_seed`, computed without a GPU.

CUDA's generator is Philox4x32-10 (Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011)
behind a Box-Muller transform. In a small tensor element i is the first number of thread i, whose counter is
(number of the call, 0, i, 0) and whose key is the seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HIGH = np.uint64(32)
_LARGEST = 256
"""Elements up to which one block makes the tensor, each thread one element."""


def _philox(counter: list[np.ndarray], key: tuple[int, int]) -> list[np.ndarray]:
    """Ten rounds, four words of 32 bits for each counter."""
    c0, c1, c2, c3 = counter
    for number in range(10):
        k0, k1 = (
            np.uint64((word + number * step) & 0xFFFFFFFF) for word, step in zip(key, _WEYL, strict=True)
        )
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (second >> _HIGH) ^ c1 ^ k0, second & _LOW, (first >> _HIGH) ^ c3 ^ k1, first & _LOW
    return [c0, c1, c2, c3]


def _uniform(shape: Sequence[int], call: int, seed: int) -> list[np.ndarray]:
    """The transform's inputs of a normal number: a number in (0, 1], and an angle in (0, 2 pi]."""
    elements = math.prod(shape)
    assert elements <= _LARGEST, f"{elements} elements: larger tensors are drawn in another order"
    zero = np.zeros(elements, dtype=np.uint64)
    thread = np.arange(elements, dtype=np.uint64)
    words = _philox([zero + np.uint64(call), zero, thread, zero], (seed, 0))
    uniform, share = (word * 2.0**-32 + 2.0**-33 for word in words[:2])
    return [uniform, 2.0 * np.pi * share]


def cuda_randn(shape: Sequence[int], call: int, seed: int = 0) -> torch.Tensor:
    """The ``call``-th tensor (from 0) drawn after seeding, float32 on the CPU; up to 256 elements."""
    uniform, angle = _uniform(shape, call, seed)
    normal = np.sqrt(-2.0 * np.log(uniform)) * np.sin(angle)
    return torch.from_numpy(normal.astype(np.float32)).reshape(tuple(shape))


def cuda_randn_error(shape: Sequence[int], call: int, seed: int = 0) -> torch.Tensor:
    """Largest difference between a GPU's numbers and `cuda_randn`, element by element, float64.

    A GPU computes in float32, u = 2^-24. The number in (0, 1] is a word rounded and a sum rounded, 2 u, which
    is an absolute error of its logarithm; that is accurate to an ulp (2 u, CUDA's programming guide), and the
    root halves what comes in and rounds. The angle is a word, a constant, a product and a sum rounded, 4 u;
    its sine is `sin.approx`, 2^-20.5 between -2 pi and 2 pi (PTX ISA). Their product is rounded, and so is
    our own number.
    """
    unit = 2.0**-24
    uniform, angle = _uniform(shape, call, seed)
    square, sine = -2.0 * np.log(uniform), np.sin(angle)
    radius = np.sqrt(square)
    of_radius = (2.0 * 2.0 * unit + square * 2.0 * unit) / (2.0 * radius) + radius * unit
    of_sine = 4.0 * unit * angle + 2.0**-20.5
    error = np.abs(sine) * of_radius + radius * of_sine + 2.0 * unit * np.abs(radius * sine)
    return torch.from_numpy(error).reshape(tuple(shape))
