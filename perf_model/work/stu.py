"""The production STU: FLOPs and fewest bytes of each module of `reference.hstu_transducer`.

The attention's products count all pairs of rows, as the dense layout computes them.

Legend: B batch, N rows of a padded sequence, T targets, D embedding, H heads, K attention dim, V hidden dim.
"""

from __future__ import annotations

from configs import DLRMv3Config, STUConfig
from parity.base.work import Work
from perf_model.work.parts import INDEX, Shapes, around, elementwise, linear, lookup


def stu_work(config: STUConfig, shapes: Shapes, item: int) -> dict[str, Work]:
    """By tap: module paths, `@1` for a second call, and "" for the whole model."""
    b, n = shapes["seq_ids"]
    d, t = config.embedding_dim, config.max_num_targets
    lengths, timestamps, rows = INDEX * b, INDEX * b * n, item * b * n * d
    scale = item * b * n if "attn_scale" in shapes else 0
    table = lookup(b * n, config.num_items + 1, d, item)
    positions = min(b * n, config.num_position_buckets) + min(b * n, config.num_time_buckets + 1)
    encoder = Work(0, item * positions * d, 2 * lengths + timestamps + rows, rows)
    works = {
        "_embedding_module._item_emb": table,
        "_embedding_module": table,
        "_positional_encoder": encoder,
        "_stu_module._valid_attn_mask": Work(0, 0, 2 * lengths, item * b * n * n),
    }
    layers = []
    for number in range(config.num_layers):
        path = f"_stu_module._stu_layers.{number}"
        works |= layer(config, b, n, n, scale, item, path)
        layers.append(works[path])
    works["_stu_module"] = around(*layers, inputs=rows + 2 * lengths + scale, outputs=rows)
    # The split reads only the rows of the targets.
    targets = item * b * t * d
    works["_split_targets"] = Work(0, 0, targets + 2 * lengths, targets)
    works["_split_targets@1"] = Work(0, 0, INDEX * b * t + 2 * lengths, INDEX * b * t)
    works |= postprocessor(config, b * t, item, "_output_postprocessor")
    parts = [works[name] for name in ("_embedding_module", "_positional_encoder", "_stu_module")]
    post = works["_output_postprocessor"]
    ids = INDEX * b * n
    works[""] = around(*parts, post, inputs=2 * lengths + ids + timestamps + scale, outputs=targets)
    return works


def layer(
    config: STUConfig | DLRMv3Config, b: int, m: int, n: int, scale: int, item: int, path: str
) -> dict[str, Work]:
    """One layer over M of N rows of B sequences, and its modules, by path; `scale`: bytes of divisors."""
    d, h = config.embedding_dim, config.num_heads
    hk, hv = h * config.attention_dim, h * config.hidden_dim
    rows, mask = b * m, item * b * m * n
    normed = h if config.use_group_norm else hv
    # The norm's result is float32 in half-precision models.
    wide = max(item, 4)
    attention = Work(
        2 * rows * n * (hk + hv), 0, item * (rows * hk + b * n * (hk + hv)) + mask + scale, item * rows * hv
    )
    # Norms take their weights as arguments.
    parts = {
        f"{path}._input_norm": Work(0, 0, item * (rows * d + 2 * d), item * rows * d),
        f"{path}._attn": attention,
        f"{path}._output_norm": Work(0, 0, item * (rows * hv + 2 * normed), wide * rows * hv),
    }
    uvqk = linear(rows, d, 2 * hv + 2 * hk, item)
    output = linear(rows, 3 * hv, d, item, bias=False)
    whole = around(
        *(attention, uvqk, output),
        weights=item * (2 * d + 2 * normed),
        inputs=item * rows * d + mask + scale,
        outputs=item * rows * d,
    )
    return {**parts, path: whole}


TIME_FEATURES = 4
"""Sine and cosine of two periods."""


def postprocessor(config: STUConfig | DLRMv3Config, rows: int, item: int, path: str) -> dict[str, Work]:
    """The output's postprocessor at `path`, and its modules."""
    d = config.embedding_dim
    if config.output_postprocessor == "l2_norm":
        return {path: elementwise(rows * d, item)}
    norm = Work(0, item * 2 * d, item * rows * d, item * rows * d)
    if config.output_postprocessor == "layer_norm":
        return {f"{path}._layer_norm": norm, path: norm}
    combiner = linear(rows, d + TIME_FEATURES, d, item)
    whole = around(norm, combiner, inputs=item * rows * d + INDEX * rows, outputs=item * rows * d)
    return {f"{path}._time_feature_combiner": combiner, f"{path}._layer_norm": norm, path: whole}
