"""Scales of research HSTU's initial weights, with which every module shows in the output.

With the public initial values a block moves its residual by about a hundredth. A port without the block
still looks right. D is the width of the stream, X_l its root mean square before block l.

* Embeddings of items and ratings: 1 / sqrt(own width) of X_0 / sqrt(2), since the input is multiplied by
  sqrt(D). Positions: X_0 / sqrt(2), as much as the items.
* `_uvqk`: 1 / sqrt(D). Then u, v, q and k have unit variance before their activation, like their normalised
  input.
* `_ts_w`, `_pos_w`: 1, and `_w`, the only bias of its model, sqrt(2). The attention's logits are sums of
  attention_dim products of variance 0.13, a few units wide. A bias of the same order reaches every logit.
  A case may have another scale, `bias_scale`, with which logits reach the flat ends of SiLU.
* A case may have a `stream_scale`: a factor on the scales of embeddings and of `_o`, and so on every X_l.
* `_o`: the block adds half of X_l to the stream. Its input is SiLU times a normalised value. The bias adds a
  third of that. X_l grows with the depth l: the last block counts as much as the first.
"""

from __future__ import annotations

import math
import re

import torch

STREAM = 0.14
"""Root mean square of the residual stream behind the input embedding, near that of the public initial values.

The layer norms divide it out, except for their epsilon (1e-6, beside a variance of 0.02). A wrong epsilon
therefore shows.
"""
BLOCK_RATIO = 0.5
"""||f(x)|| / ||x|| of a block."""
SILU_RMS = 0.596
"""Root mean square of SiLU of a standard normal variable."""


def stream_before(block: int) -> float:
    """X_l for block l."""
    return STREAM * math.sqrt(1.0 + BLOCK_RATIO**2) ** block


def table_scale(table: torch.Tensor) -> float:
    """The scale of a table (V, D) of items or ratings."""
    return STREAM / math.sqrt(2.0) / math.sqrt(table.shape[1])


def weight_scale(
    name: str, parameter: torch.Tensor, bias_scale: float = 1.0, stream_scale: float = 1.0
) -> float | None:
    """Standard deviation of a parameter's initial values; None for a name that is not the model's."""
    *_, parent, role = ("", *name.split("."))
    if role in ("_ts_w", "_pos_w"):
        return bias_scale
    if role == "_w":
        return bias_scale * math.sqrt(2.0)
    if role == "_uvqk":
        return 1.0 / math.sqrt(parameter.shape[0])
    if (parent, role) == ("_pos_emb", "weight"):
        return stream_scale * STREAM / math.sqrt(2.0)
    if (parent, role) in (("_item_emb", "weight"), ("_rating_emb", "weight")):
        return stream_scale * table_scale(parameter)
    if parent == "_o" and (layer := re.search(r"_attention_layers\.(\d+)\.", name)):
        stream = stream_scale * stream_before(int(layer[1]))
        if role == "bias":
            return BLOCK_RATIO * stream / 3.0
        return BLOCK_RATIO * stream / (SILU_RMS * math.sqrt(parameter.shape[1]))
    return None
