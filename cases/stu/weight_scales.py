"""Scales of the production STU's initial weights, with which every module shows in the output.

* Items have the scale of research HSTU's.
* Positions and times together have the scale of research HSTU's positions.
* `_uvqk_weight` has the scale of `_uvqk` there. Norm weights have 1 and biases 0.3.
* `_output_weight` has the scale of `_o`. Two thirds of its input, u and u times the normed attention, have
  SiLU's size. The attention itself, one third, is small.
* Time features at the output have the size of the state beside them.
"""

from __future__ import annotations

import math
import re

import torch

from cases.hstu.weight_scales import BLOCK_RATIO, SILU_RMS, STREAM, stream_before, table_scale


def weight_scale(name: str, parameter: torch.Tensor) -> float | None:
    """Standard deviation of a parameter's initial values; None for a name that is not the model's."""
    *_, parent, role = ("", *name.split("."))
    if (parent, role) == ("_item_emb", "weight"):
        return table_scale(parameter)
    if role in ("_position_embeddings_weight", "_timestamp_embeddings_weight"):
        return STREAM / 2.0
    if role == "_uvqk_weight":
        return 1.0 / math.sqrt(parameter.shape[0])
    if parent == "_layer_norm" or "_norm_" in role or role == "_uvqk_beta":
        return 1.0 if role.endswith("weight") else 0.3
    if parent == "_time_feature_combiner":
        return STREAM / 3.0 if role == "bias" else 1.0 / math.sqrt(parameter.shape[1])
    if role == "_output_weight" and (layer := re.search(r"_stu_layers\.(\d+)\.", name)):
        return BLOCK_RATIO * stream_before(int(layer[1])) / (SILU_RMS * math.sqrt(parameter.shape[0] * 2 / 3))
    return None
