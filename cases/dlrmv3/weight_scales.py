"""Scales of DLRMv3's initial weights, with which every module shows in the output.

* The rows of the residual stream have the scale of `cases.hstu`: the last norm of each of the preprocessor's
  MLPs, and the contextual rows' matrices, divide out the factor sqrt(D) that follows.
* Inner values of MLPs are small, so that the norms' epsilon shows.
* Logits are a few units wide. A case may multiply those of the first task by a `logit_scale`, with which
  powers of them are beyond float16 or float32. The other tasks keep sigmoids that are not saturated.
* The STU layers, positions and time features have the scales of `cases.stu`.
"""

from __future__ import annotations

import math

import torch

from cases.hstu.weight_scales import STREAM
from cases.stu import weight_scales as stu

_PARTS = 3
"""Content, category and action of a row."""
_INNER = 0.1
"""Root mean square behind the first layer of an MLP, whose input has unit variance."""
_LOGIT = 2.0
"""Root mean square of a logit."""


def weight_scale(name: str, parameter: torch.Tensor) -> float | None:
    """Standard deviation of a parameter's initial values; None for a name that is not the model's."""
    *_, parent, place, role = ("", "", *name.split("."))
    if role.startswith("_batched_contextual_linear"):
        fan_in = parameter.shape[1] if role.endswith("weights") else 9.0
        return _row(parameter.shape[-1]) / math.sqrt(fan_in)
    if role in ("_action_embedding_table", "_target_action_embedding_table"):
        return 1.0
    if not parent.endswith(("_embedding_mlp", "_prediction_module")):
        return stu.weight_scale(name, parameter)
    is_bias = role == "bias"
    if place == "0":
        return _INNER * (0.3 if is_bias else 1.0 / math.sqrt(parameter.shape[1]))
    if place == "1":
        return 0.3 if is_bias else 1.0
    if place == "2":
        # A gated norm halves its input.
        out = _LOGIT if parent == "_prediction_module" else _INNER
        return out * (0.3 if is_bias else 2.0 / (_INNER * math.sqrt(parameter.shape[1])))
    of_stream = parent != "_item_embedding_mlp"
    return (_row(parameter.shape[0]) / math.sqrt(_PARTS) if of_stream else 1.0) * (0.3 if is_bias else 1.0)


def is_of_logits(name: str) -> bool:
    """Whether a parameter is the weight of the layer in front of the sigmoids."""
    return name.endswith("_prediction_module.2.weight")


def scale_of_tasks(scale: float | None, tasks: int, logit_scale: float) -> torch.Tensor:
    """(K, 1) standard deviations of the weights of each task's logit."""
    scales = torch.full((tasks, 1), float(scale or 0.0))
    scales[0] *= logit_scale
    return scales


def _row(embedding_dim: int) -> float:
    """Root mean square of a row in front of the positional encoder."""
    return STREAM / math.sqrt(2.0) / math.sqrt(embedding_dim)
