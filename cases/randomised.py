"""Random small configurations of every family: all choices of the schema, with small sizes.

A draw may be a configuration that the schema or the case refuses, such as a padded length that equals another
axis. The caller then draws again.

Layer norms of fewer than `_LEAST_NORMED` numbers are degenerate: one number becomes 0 whatever it is, and two
become -1 and 1. No drawn model has any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from configs import CaseConfig, case_from_values
from parity.base.quantisation import SCHEMES

LARGEST_SEED = 1 << 20
_LEAST_NORMED = 4
_OF_PRODUCTS = tuple(name for name, scheme in SCHEMES.items() if not scheme.is_of_tables)
_OF_TABLES = tuple(name for name, scheme in SCHEMES.items() if scheme.is_of_tables)

Values = dict[str, Any]
Choice = TypeVar("Choice")


def randomised(config: CaseConfig, rng: np.random.Generator) -> CaseConfig:
    """A random small configuration of the family of `config`.

    Raises:
        ConfigError: The schema refuses the draw.
    """
    draw = _Draw(rng)
    model, inputs = _FAMILIES[config.family](draw)
    inputs["seed"] = draw.size(0, LARGEST_SEED)
    return case_from_values(
        {
            "name": f"{config.family}_random",
            "description": f"a random small configuration of {config.family}",
            "family": config.family,
            "model": {name: value for name, value in model.items() if value is not None},
            "input": {name: value for name, value in inputs.items() if value is not None},
        }
    )


class _Draw:
    """Values of fields; None leaves a field out."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def size(self, least: int, largest: int) -> int:
        """A whole number from least to largest, both included."""
        return int(self._rng.integers(least, largest + 1))

    def sizes(self, count: int, least: int, largest: int) -> list[int]:
        """Whole numbers, as in `size`."""
        return [self.size(least, largest) for _ in range(count)]

    def number(self, least: float, largest: float) -> float:
        """A number between two others, uniform in its logarithm."""
        return float(np.exp(self._rng.uniform(np.log(least), np.log(largest))))

    def choice(self, *choices: Choice) -> Choice:
        """One of some choices."""
        return choices[self.size(0, len(choices) - 1)]

    def flag(self) -> bool:
        """True or False."""
        return self.choice(True, False)

    def or_nothing(self, value: Choice) -> Choice | None:
        """A value, or None."""
        return self.choice(value, None)


def _quantised(draw: _Draw, **schemes: tuple[str, ...]) -> Values:
    """Fields that quantise a model, or none of them.

    Args:
        schemes: Schemes by pattern, of which one is drawn.
    """
    if draw.flag():
        return {}
    return {
        "quantised": {pattern: draw.choice(*names) for pattern, names in schemes.items()},
        "calibration": draw.choice("largest", "percentile", "squared_error"),
        "block_size": draw.or_nothing(draw.size(1, 9)),
    }


def _hstu(draw: _Draw) -> tuple[Values, Values]:
    items, longest, heads = draw.size(2, 80), draw.size(1, 24), draw.size(1, 3)
    embedding = draw.choice("local", "categorical")
    preprocessor = draw.choice("positional", "rated", "combined")
    normalization = draw.choice("rel_bias", "hstu_rel_bias", "softmax_rel_bias")
    biases = ["bucketed_time_and_position", "positional"]
    if normalization == "softmax_rel_bias":
        biases.append("none")
    batch = draw.size(1, 9)
    model = {
        "num_items": items,
        "max_sequence_len": longest,
        "max_output_len": draw.size(1, 4),
        "item_embedding_dim": draw.size(_LEAST_NORMED, 24),
        "embedding": embedding,
        "num_categories": draw.size(1, items) if embedding == "categorical" else None,
        "input_preprocessor": preprocessor,
        "rating_embedding_dim": draw.size(1, 8) if preprocessor == "rated" else None,
        "num_ratings": draw.or_nothing(draw.size(2, 8)),
        "num_blocks": draw.size(1, 3),
        "num_heads": heads,
        "attention_dim": draw.size(1, 10),
        "linear_dim": draw.size(_LEAST_NORMED, 10),
        "normalization": normalization,
        "linear_config": "uvqk",
        "linear_activation": draw.choice("silu", "none"),
        "concat_ua": draw.flag(),
        "relative_attention_bias": draw.choice(*biases),
        "num_buckets": draw.or_nothing(draw.size(1, 160)),
        "bucket_divisor": draw.or_nothing(draw.number(0.1, 1.0)),
        "epsilon": draw.or_nothing(draw.number(1e-7, 1e-4)),
        "output_postprocessor": draw.choice("l2_norm", "layer_norm"),
        "linear_dropout_rate": draw.or_nothing(0.2),
        "attn_dropout_rate": draw.or_nothing(0.1),
        "output_epsilon": draw.or_nothing(draw.number(1e-7, 1.0)),
    }
    inputs = {
        "batch_size": batch,
        "num_candidates": draw.size(1, min(items, 9)),
        "lengths": draw.or_nothing(draw.sizes(batch, 1, longest)),
        "bias_scale": draw.or_nothing(draw.number(0.2, 5.0)),
        "stream_scale": draw.or_nothing(draw.number(0.1, 1000.0)),
    }
    return model | _quantised(draw, **{"*": _OF_PRODUCTS}), inputs


def _stu(draw: _Draw) -> tuple[Values, Values]:
    context, history = draw.size(0, 4), draw.size(1, 24)
    model = {
        "num_items": draw.size(2, 80),
        "contextual_seq_len": draw.or_nothing(context),
        "contextual_attention": draw.flag(),
        "max_uih_len": history,
        "max_num_targets": draw.size(1, 5),
        "embedding_dim": draw.size(_LEAST_NORMED, 24),
        "num_layers": draw.size(1, 3),
        "num_heads": draw.size(1, 3),
        "attention_dim": draw.size(1, 10),
        "hidden_dim": draw.size(_LEAST_NORMED, 10),
        "attn_alpha": draw.or_nothing(draw.number(0.1, 1.0)),
        "max_attn_len": draw.or_nothing(draw.size(1, history)),
        "use_group_norm": draw.flag(),
        "num_position_buckets": draw.or_nothing(draw.size(context + 1, 40)),
        "num_time_buckets": draw.or_nothing(draw.size(1, 300)),
        "output_postprocessor": draw.choice("l2_norm", "layer_norm", "timestamp_layer_norm"),
        "output_dropout_ratio": draw.or_nothing(0.1),
    }
    inputs = {"batch_size": draw.size(1, 9), "attn_scale": draw.flag()}
    return model | _quantised(draw, **{"*": _OF_PRODUCTS}), inputs


def _dlrm(draw: _Draw) -> tuple[Values, Values]:
    composed = draw.choice("plain", "qr", "md", "weighted")
    operation = draw.choice("mult", "add", "concat")
    concat = composed == "qr" and operation == "concat"
    rounds = composed == "md" and draw.flag()
    columns = draw.choice(2, 4, 8) if rounds else draw.size(2, 10)
    bottom = [*draw.sizes(draw.size(1, 3), 1, 12), columns * (2 if concat else 1)]
    top = [*draw.sizes(draw.size(0, 2), 2, 12), 1]
    tables = draw.sizes(draw.size(1, 5), 2, 80)
    cap = draw.or_nothing(draw.size(10, 60))
    # Concatenated columns need tables that are all composed.
    least = min(tables if cap is None else [min(rows, cap) for rows in tables])
    longest = draw.size(1, 5)
    model = {
        "arch_mlp_bot": "-".join(map(str, bottom)),
        "arch_mlp_top": "-".join(map(str, top)),
        "arch_sparse_feature_size": columns,
        "arch_embedding_size": tables,
        "max_rows_per_table": cap,
        "arch_interaction_op": draw.choice("dot", "cat", "sum"),
        "arch_interaction_itself": draw.flag(),
        "sigmoid_bot": draw.or_nothing(draw.size(0, len(bottom) - 2)),
        "sigmoid_top": draw.or_nothing(draw.size(-1, len(top) - 1)),
        "loss_threshold": draw.or_nothing(draw.number(1e-3, 0.2)),
        "qr_flag": composed == "qr",
        "qr_operation": operation,
        "qr_collisions": draw.or_nothing(draw.size(1, 6)),
        "qr_threshold": least - 1 if concat else draw.or_nothing(draw.size(1, 40)),
        "md_flag": composed == "md",
        "md_temperature": draw.or_nothing(draw.number(0.05, 0.8)),
        "md_round_dims": rounds,
        "md_threshold": draw.or_nothing(draw.size(1, 40)),
        "weighted_pooling": draw.choice("learned", "fixed") if composed == "weighted" else None,
        "max_bag_size": draw.or_nothing(draw.size(longest, 6)),
    }
    inputs = {
        "batch_size": draw.size(1, 16),
        "longest_bag": longest,
        "per_sample_weights": draw.flag(),
    }
    schemes = {"*": _OF_PRODUCTS}
    if composed in ("plain", "weighted"):
        schemes["emb_l"] = _OF_TABLES
    model |= _quantised(draw, **schemes)
    return model, inputs | {"logit_scale": draw.or_nothing(draw.number(0.5, 4.0))}


def _dlrmv3(draw: _Draw) -> tuple[Values, Values]:
    features = draw.size(0, 2)
    lengths = draw.sizes(features, 1, 2)
    model = {
        "embedding_table_dim": draw.size(2, 12),
        "preprocessor_hidden_dim": draw.size(_LEAST_NORMED, 16),
        "item_hidden_dim": draw.size(_LEAST_NORMED, 16),
        "prediction_hidden_dim": draw.size(_LEAST_NORMED, 16),
        "embedding_dim": draw.size(_LEAST_NORMED, 24),
        "contextual_max_lengths": lengths,
        "contextual_min_seq_lengths": draw.sizes(features, 0, 12),
        "action_weights": draw.or_nothing(draw.sizes(draw.size(1, 4), 1, 20)),
        # Primes that are the size of no other axis: four sizes are padded.
        "max_uih_len": draw.choice(37, 41, 43),
        "max_num_candidates": draw.choice(29, 31),
        "num_layers": draw.size(1, 2),
        "num_heads": draw.size(1, 3),
        "attention_dim": draw.size(1, 10),
        "hidden_dim": draw.size(_LEAST_NORMED, 10),
        "use_group_norm": draw.flag(),
        "num_position_buckets": draw.size(sum(lengths) + 1, 40),
        "num_time_buckets": draw.size(1, 300),
        "output_postprocessor": draw.choice("layer_norm", "timestamp_layer_norm"),
        "num_classification_tasks": draw.size(1, 2),
        "num_regression_tasks": draw.size(0, 2),
    }
    inputs = {"batch_size": draw.size(1, 9), "table_rows": draw.size(2, 30)}
    return model, inputs | {"logit_scale": draw.or_nothing(draw.number(0.5, 4.0))}


def _lecture_dlrm(draw: _Draw) -> tuple[Values, Values]:
    model = {
        "dense_input_feature_size": draw.size(1, 13),
        "dense_hidden_sizes": draw.sizes(draw.size(0, 2), 1, 16),
        "dense_output_size": draw.size(1, 8),
        "cardinalities": draw.sizes(draw.size(1, 5), 1, 60),
        "sparse_embedding_size": draw.size(1, 6),
        "prediction_hidden_sizes": draw.sizes(draw.size(0, 2), 1, 12),
        "token_hash": draw.choice("modulus", "index"),
    }
    batch = draw.size(1, 16)
    return model, {"batch_size": batch, "logit_scale": draw.or_nothing(draw.number(0.5, 4.0))}


_FAMILIES: dict[str, Callable[[_Draw], tuple[Values, Values]]] = {
    "dlrm": _dlrm,
    "dlrmv3": _dlrmv3,
    "hstu": _hstu,
    "lecture_dlrm": _lecture_dlrm,
    "stu": _stu,
}
