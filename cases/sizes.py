"""Least sizes of a case in memory, by arithmetic: sizes that no machine has are refused at once.

Each is a lower bound: the largest tables and matrices count, small parameters do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from configs import CaseConfig, DLRMConfig, DLRMv3Config, HSTUConfig, LectureDLRMConfig, STUConfig

_PARAMETER, _INPUT = 4, 8
"""Bytes of a parameter in float32, and of a number in the inputs."""
_MODULE = 10_000
"""Bytes of the Python objects of one block, whatever its widths."""
_TOKEN = 40
"""Bytes of a token in the lecture's metadata, a number in a list."""


def weight_bytes(config: CaseConfig) -> int:
    """Least bytes of the weights of one side."""
    model = config.model
    if isinstance(model, HSTUConfig):
        return _hstu(model)
    if isinstance(model, STUConfig):
        return _stu(model)
    if isinstance(model, DLRMv3Config):
        return _dlrmv3(model)
    if isinstance(model, LectureDLRMConfig):
        rows = sum(model.cardinalities)
        return rows * (model.sparse_embedding_size * _PARAMETER + _TOKEN) + _mlp(
            (model.dense_input_feature_size, *model.dense_hidden_sizes, model.dense_output_size)
        )
    assert isinstance(model, DLRMConfig)
    rows, width = model.table_rows, model.arch_sparse_feature_size
    if model.qr_flag:
        # A quotient's table and a remainder's, above the threshold.
        collisions, threshold = model.qr_collisions, model.qr_threshold
        rows = [-(-count // collisions) + collisions if count > threshold else count for count in rows]
    # Tables of mixed dimensions have one column at least.
    tables = sum(rows) * (1 if model.md_flag else width)
    return tables * _PARAMETER + _mlp(model.bottom_widths) + _mlp(model.top_widths)


def input_bytes(config: CaseConfig) -> int:
    """Least bytes of the typical batch."""
    model, wanted = config.model, config.input
    if isinstance(model, HSTUConfig):
        row = 3 * model.padded_length + wanted.num_candidates // wanted.batch_size
    elif isinstance(model, STUConfig):
        row = model.padded_length
    elif isinstance(model, DLRMv3Config):
        # Items and categories are float32, and so are the tables that they come from.
        row = model.embedding_table_dim * (
            model.merged_length + 3 * wanted.table_rows // 2 // wanted.batch_size
        )
    elif isinstance(model, LectureDLRMConfig):
        # Dense features are float32.
        row = model.dense_input_feature_size // 2 + len(model.cardinalities)
    else:
        # Every other table has bags of half the longest on average.
        bags = len(model.table_rows) + -(-len(model.table_rows) // 2) * (wanted.longest_bag // 2)
        row = model.bottom_widths[0] + bags
    return wanted.batch_size * row * _INPUT


def drawing_bytes(config: CaseConfig) -> int:
    """Least bytes of what is drawn on the way to the inputs: research HSTU ranks all of its items."""
    return config.model.num_items * _INPUT if isinstance(config.model, HSTUConfig) else 0


def _hstu(model: HSTUConfig) -> int:
    width, heads = model.embedding_dim, model.num_heads
    rows = model.num_items if model.num_categories is None else model.num_categories
    projections = width * heads * (3 * model.linear_dim + 2 * model.attention_dim)
    # Each block has a weight for each bucket of time.
    buckets = model.num_buckets if model.relative_attention_bias == "bucketed_time_and_position" else 0
    block = (projections + buckets) * _PARAMETER + _MODULE
    rating_widths = {"rated": model.rating_embedding_dim or 0, "combined": model.item_embedding_dim}
    tables = rows * model.item_embedding_dim + model.sequence_width * width
    tables += model.num_ratings * rating_widths.get(model.input_preprocessor, 0)
    # A byte for each element of the attention mask.
    return tables * _PARAMETER + model.sequence_width**2 + model.num_blocks * block


def _stu(model: STUConfig) -> int:
    width, heads = model.embedding_dim, model.num_heads
    projections = width * heads * (3 * model.hidden_dim + 2 * model.attention_dim)
    rows = model.num_items + model.num_position_buckets + model.num_time_buckets
    return rows * width * _PARAMETER + model.num_layers * (projections * _PARAMETER + _MODULE)


def _dlrmv3(model: DLRMv3Config) -> int:
    width, columns, hidden = model.embedding_dim, model.embedding_table_dim, model.preprocessor_hidden_dim
    layer = width * model.num_heads * (5 * model.hidden_dim + 2 * model.attention_dim) * _PARAMETER
    tables = (
        model.num_position_buckets + model.num_time_buckets + model.contextual_seq_len * columns
    ) * width
    mlps = 2 * _mlp((columns, hidden, width)) + _mlp((2 * columns, model.item_hidden_dim, width))
    mlps += _mlp((width, model.prediction_hidden_dim, model.num_tasks))
    return tables * _PARAMETER + mlps + model.num_layers * (layer + _MODULE)


def _mlp(widths: Sequence[int]) -> int:
    return sum(wide * wider for wide, wider in itertools.pairwise(widths)) * _PARAMETER
