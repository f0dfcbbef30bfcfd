"""Scales of initial weights, with which every module of a model shows in its output.

With the public initial values a block moves its residual by about a hundredth, and a port without
the block still looks right. Here each kind of parameter has the scale at which what it feeds is
neither lost nor saturated; D is the width of the stream, X_l its root mean square before block l:

* embeddings of items and ratings: normal, 1 / sqrt(own width) of X_0 / sqrt(2), since the input is
  multiplied by sqrt(D); positions: X_0 / sqrt(2), as much as the items.
* ``_uvqk``: 1 / sqrt(D), so that u, v, q and k before their activation have unit variance, as their
  input does, being normalised.
* ``_ts_w``, ``_pos_w``: 1, and ``_w``, which has no other bias beside it, sqrt(2). The attention's
  logits are sums of attention_dim products of variance 0.13, a few units wide; a bias of the same
  order reaches every logit.
* ``_o``: the weight so that the block adds half of X_l to the stream, for an input that is SiLU times
  a normalised value; the bias a third of that. X_l grows with the depth l accordingly: the last block
  counts as much as the first.

DLRM's, for tables of D columns:

* tables: D^-1/4, so that a product of two rows has unit variance; those of mixed dimensions 1, with the
  rest in the projection.
* MLPs: sqrt(2 / inputs), which ReLU keeps; the first layer less by the size of its input, and the last
  one sqrt(1 / inputs), so that no sigmoid saturates. Biases 0.3, a third of what they are added to.
* pooling weights: 1.

The production STU's: positions and times share what research HSTU gives to positions; ``_uvqk_weight`` as
``_uvqk``; norm weights 1 and biases 0.3; ``_output_weight`` as ``_o``, for an input of which two thirds, u
and its product with the normed attention, are of SiLU's size and one third, the attention itself, is small;
time features at the output as the state that they are joined to.

The lecture's DLRM: tables 1, MLPs sqrt(1 / inputs), the first layer less by the size of the counts, and
biases 0.3.
"""

from __future__ import annotations

import math
import re

import torch

#: Root mean square of the residual stream behind the input embedding. Small, near that of the public
#: initial values: the layer norms divide it out, and only their epsilon (1e-6, beside a variance of 0.02)
#: can tell, so that a wrong epsilon shows.
_STREAM = 0.14
#: ||f(x)|| / ||x|| that a block is scaled for.
_BLOCK_RATIO = 0.5
#: Root mean square of SiLU of a standard normal variable.
_SILU_RMS = 0.596
#: Root mean square of the logarithms of synthetic counts.
_LOG_COUNTS_RMS = 5.0
#: Root mean square of the counts that the lecture's model takes as they are.
_COUNTS_RMS = 1000.0


def scale(name: str, parameter: torch.Tensor) -> float:
    """Standard deviation of a parameter's initial values.

    Raises:
        ValueError: a parameter whose role is not known here.
    """
    share = _STREAM / math.sqrt(2.0)
    *_, parent, role = ("", *name.split("."))
    if role in ("_ts_w", "_pos_w"):
        return 1.0
    if role == "_w":
        return math.sqrt(2.0)
    if role == "_uvqk":
        return 1.0 / math.sqrt(parameter.shape[0])
    if (parent, role) == ("_pos_emb", "weight"):
        return share
    if (parent, role) in (("_item_emb", "weight"), ("_rating_emb", "weight")):
        return share / math.sqrt(parameter.shape[1])
    for of_family in (_dlrm_scale, _stu_scale):
        if (found := of_family(name, parameter)) is not None:
            return found
    if parent == "_o" and (layer := re.search(r"_attention_layers\.(\d+)\.", name)):
        stream = _STREAM * math.sqrt(1.0 + _BLOCK_RATIO**2) ** int(layer[1])
        if role == "bias":
            return _BLOCK_RATIO * stream / 3.0
        return _BLOCK_RATIO * stream / (_SILU_RMS * math.sqrt(parameter.shape[1]))
    raise ValueError(
        f"{name}: no scale is known for this parameter; add its role to parity.inputs.weight_scales"
    )


def _dlrm_scale(name: str, parameter: torch.Tensor) -> float | None:
    """The scales of DLRM's parameters; None for a name that is not of DLRM. D: columns of a table."""
    top, *_, role = name.split(".")
    if top == "emb_l":
        rows, columns = parameter.shape
        if name.endswith("proj.weight"):
            return rows**-0.25 / math.sqrt(columns)
        return 1.0 if name.endswith("embs.weight") else columns**-0.25
    if top in ("v_W_l", "sparse_layer"):
        return 1.0
    if top in ("bot_l", "top_l"):
        if role == "bias":
            return 0.3
        outputs, inputs = parameter.shape
        if outputs == 1:
            return 1.0 / math.sqrt(inputs)
        return math.sqrt(2.0 / inputs) / (_LOG_COUNTS_RMS if name == "bot_l.0.weight" else 1.0)
    if top in ("dense_layer", "prediction_layer"):
        if role == "bias":
            return 0.3
        takes_counts = name == "dense_layer.mlp.fc_layers.0.weight"
        return 1.0 / math.sqrt(parameter.shape[1]) / (_COUNTS_RMS if takes_counts else 1.0)
    return None


def _stu_scale(name: str, parameter: torch.Tensor) -> float | None:
    """The scales of the production STU's parameters; None for a name that is not of it."""
    *_, parent, role = ("", *name.split("."))
    if role in ("_position_embeddings_weight", "_timestamp_embeddings_weight"):
        return _STREAM / 2.0
    if role == "_uvqk_weight":
        return 1.0 / math.sqrt(parameter.shape[0])
    if parent == "_layer_norm" or "_norm_" in role or role == "_uvqk_beta":
        return 1.0 if role.endswith("weight") else 0.3
    if parent == "_time_feature_combiner":
        return _STREAM / 3.0 if role == "bias" else 1.0 / math.sqrt(parameter.shape[1])
    if role == "_output_weight" and (layer := re.search(r"_stu_layers\.(\d+)\.", name)):
        stream = _STREAM * math.sqrt(1.0 + _BLOCK_RATIO**2) ** int(layer[1])
        return _BLOCK_RATIO * stream / (_SILU_RMS * math.sqrt(parameter.shape[0] * 2 / 3))
    return None
