"""Scales of DLRM's initial weights. They make every module's effect on the output measurable.

For tables of D columns:

* Tables: D^-1/4, so that a product of two rows has unit variance. Tables of mixed dimensions have 1, with the
  rest in the projection.
* MLPs: sqrt(2 / inputs), so that ReLU keeps the variance. The first layer divides by the size of its input.
  The last layer has sqrt(1 / inputs), so that no sigmoid saturates. A case may multiply that by a
  `logit_scale`, with which powers of logits are beyond float16. Biases have 0.3, a third of the values before
  the addition.
* Pooling weights: 1.
* Tables in codes: `cases.dlrm.code_rows` replaces the first rows.
* Scales of quantisers: 1, which a calibration replaces.
"""

from __future__ import annotations

import math

import torch

_LOG_COUNTS_RMS = 5.0
"""Root mean square of the logarithms of synthetic counts."""


def weight_scale(name: str, parameter: torch.Tensor, logit_scale: float = 1.0) -> float | None:
    """Standard deviation of a parameter's initial values; None for a name that is not the model's."""
    top, *_, role = name.split(".")
    if top == "emb_l":
        rows, columns = parameter.shape
        if name.endswith("proj.weight"):
            return rows**-0.25 / math.sqrt(columns)
        return 1.0 if name.endswith("embs.weight") else columns**-0.25
    if top == "v_W_l":
        return 1.0
    if top in ("bot_l", "top_l"):
        if role == "bias":
            return 0.3
        if role == "scale":
            return 1.0
        outputs, inputs = parameter.shape
        if outputs == 1:
            return logit_scale / math.sqrt(inputs)
        return math.sqrt(2.0 / inputs) / (_LOG_COUNTS_RMS if name == "bot_l.0.weight" else 1.0)
    return None
