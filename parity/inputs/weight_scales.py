"""Scales of initial weights by role and shape, with which every module of a model shows in its output.

A parameter's role is its module's class and its own number of axes:

* Tables (V, D), of `Embedding` and `EmbeddingBag`: D^-1/4, so that a product of two rows has unit variance.
* Matrices and kernels: 1 / sqrt(terms of the sum), so that an input of unit variance gives an output of unit
  variance. The sum is over all axes but the first, as in `Linear` and the convolutions.
* Stacks of matrices (E, I, O), a parameter of a module that is none of PyTorch's own, such as experts that a
  batched product multiplies: (I * O)^-1/4. Its sum is over I or O, which the shape does not tell; the axes'
  geometric mean is wrong by a fourth root at most, where the product of both would be wrong by a root.
* Weights of norms: 1.
* Statistics of a norm, which are buffers: a mean like a bias, a variance of exp(N(0, 1/4)).
* Biases, and all other parameters with at most one axis: 0.3, a third of the values that they are added to.
"""

from __future__ import annotations

import math

import numpy as np
import torch

BIAS_SCALE = 0.3
_TABLES = (torch.nn.Embedding, torch.nn.EmbeddingBag)
_NORM = "norm"
_MEAN, _VARIANCE = "running_mean", "running_var"


def role_scale(module: torch.nn.Module, name: str, parameter: torch.Tensor) -> float:
    """Standard deviation of a parameter's initial values.

    Args:
        module: The module that the parameter is an attribute of.
        name: The attribute's name.
        parameter: Of any shape.
    """
    if parameter.ndim < 2:
        is_norm = _NORM in type(module).__name__.lower() or _NORM in name.lower()
        return 1.0 if is_norm and "bias" not in name.lower() else BIAS_SCALE
    if isinstance(module, _TABLES):
        return parameter.shape[1] ** -0.25
    if parameter.ndim == 3 and not _is_of_pytorch(module):
        return max(1, math.prod(parameter.shape[1:])) ** -0.25
    return 1.0 / math.sqrt(max(1, math.prod(parameter.shape[1:])))


def is_statistic(name: str) -> bool:
    """Whether a buffer is a norm's running statistic, whose values of a constructor hide it."""
    return name.endswith((_MEAN, _VARIANCE))


def statistic(name: str, normal: np.ndarray) -> np.ndarray:
    """A norm's running statistic from normal numbers of unit variance, in their shape."""
    return BIAS_SCALE * normal if name.endswith(_MEAN) else np.exp(normal / 2)


def _is_of_pytorch(module: torch.nn.Module) -> bool:
    """Whether PyTorch defines the module's parameters: it is a layer of PyTorch, or derived from one."""
    plain = (torch.nn.Module, object)
    return any(
        cls.__module__.partition(".")[0] == "torch" for cls in type(module).__mro__ if cls not in plain
    )
