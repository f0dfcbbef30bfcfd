"""Weights of the production STU that equal a research HSTU's in every shared parameter.

Parameters of the production model alone are drawn. Weights and biases of norms and projections scale or shift
by a tenth. Tables and matrices have the size of their research counterpart.

Legend: D embedding, H heads, V linear dim.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch

from configs import HSTUConfig, STUConfig
from parity.base.errors import UserError
from reference.build import build_hstu, build_stu
from reference.hstu_dense import HSTUDenseModel
from reference.hstu_transducer import HSTUTransducer

#: Size of a drawn weight or bias, relative to the scaled or shifted values.
SHIFT = 0.1
#: Targets of one request, as in the public configuration for MovieLens (dlrm_v3/configs.py).
TARGETS = 10

_NEEDED = {
    "embedding": "local",
    "input_preprocessor": "positional",
    "linear_activation": "silu",
    "concat_ua": False,
    "relative_attention_bias": "bucketed_time_and_position",
    "output_postprocessor": "l2_norm",
}


def build_pair(
    config: HSTUConfig,
    weights: dict[str, torch.Tensor],
    seed: int,
    use_group_norm: bool = False,
    max_attn_len: int = 0,
) -> tuple[HSTUDenseModel, HSTUTransducer]:
    """Both references in float64.

    Args:
        config: of the research model.
        weights: its state dict.
        seed: of the weights that only the production model has.

    Raises:
        UserError: a research model with a part that the production model lacks.
    """
    for field, wanted in _NEEDED.items():
        value = getattr(config, field)
        if value != wanted:
            raise UserError(field, value, "has no counterpart in the production model", f"use {wanted!r}")
    if config.normalization == "softmax_rel_bias":
        raise UserError("normalization", config.normalization, "is not pointwise", "use 'rel_bias'")
    if config.max_output_len <= TARGETS:
        raise UserError(
            "max_output_len",
            config.max_output_len,
            f"leaves no room for {TARGETS} targets behind a history",
            f"give more than {TARGETS}",
        )
    research = build_hstu(config).to(torch.float64)
    research.load_state_dict({name: _wide(value) for name, value in weights.items()}, strict=True)
    production = build_stu(_production_config(config, use_group_norm, max_attn_len)).to(torch.float64)
    production.load_state_dict(_production_weights(research, production, seed), strict=True)
    return research, production


def _production_config(config: HSTUConfig, use_group_norm: bool, max_attn_len: int) -> STUConfig:
    return STUConfig(
        num_items=config.num_items,
        max_uih_len=config.max_sequence_len,
        max_num_targets=TARGETS,
        embedding_dim=config.embedding_dim,
        num_layers=config.num_blocks,
        num_heads=config.num_heads,
        attention_dim=config.attention_dim,
        hidden_dim=config.linear_dim,
        max_attn_len=max_attn_len,
        use_group_norm=use_group_norm,
        num_position_buckets=config.padded_length,
    )


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _production_weights(
    research: HSTUDenseModel, production: HSTUTransducer, seed: int
) -> dict[str, torch.Tensor]:
    def drawn(like: torch.Tensor, scale: float | torch.Tensor) -> torch.Tensor:
        # A random stream for each tensor: an option's tensors leave the others unchanged.
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        values = np.random.default_rng([seed, key]).standard_normal(tuple(like.shape))
        return torch.from_numpy(values) * scale

    shared, own = research.state_dict(), production.state_dict()
    items = shared["_embedding_module._item_emb.weight"]
    positions = shared["_input_features_preproc._pos_emb.weight"]
    # Size of the stream behind the input embedding, which multiplies by sqrt(D).
    stream = float(items[1:].std()) * math.sqrt(items.shape[1])
    weights = {
        "_embedding_module._item_emb.weight": items,
        "_positional_encoder._position_embeddings_weight": positions,
    }
    for name, value in own.items():
        if name in weights:
            continue
        *_, parent, role = name.split(".")
        block = f"_hstu._attention_layers.{parent}"
        if role == "_uvqk_weight":
            weights[name] = shared[f"{block}._uvqk"]
        elif role == "_uvqk_beta":
            # Normed input has unit variance: a column's norm is the size of the biased values.
            weights[name] = drawn(value, SHIFT * shared[f"{block}._uvqk"].norm(dim=0))
        elif role == "_output_weight":
            projection = shared[f"{block}._o.weight"].T
            beside = drawn(value[projection.shape[0] :], float(projection.std()))
            weights[name] = torch.cat([beside, projection])
        elif role == "_timestamp_embeddings_weight":
            weights[name] = drawn(value, float(positions.std()))
        elif parent == "_time_feature_combiner":
            weights[name] = drawn(value, SHIFT * stream)
            if role == "weight":
                width = value.shape[0]
                weights[name][:, :width] = torch.eye(width, dtype=torch.float64)
        else:  # weight and bias of the norms
            weights[name] = (1.0 if role.endswith("weight") else 0.0) + drawn(value, SHIFT)
    return weights
