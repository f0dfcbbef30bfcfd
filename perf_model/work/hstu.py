"""Research HSTU: FLOPs and fewest bytes of each module of `reference.hstu_dense`.

The attention's products count all pairs of positions, as the dense layout computes them. A version without
the future and the padding does half of that, or less.

Legend: B batch, N items in a padded row, P positions (N, or 2N with interleaved ratings), D embedding, I item
embedding, H heads, K attention dim, V linear dim, X candidates.
"""

from __future__ import annotations

from configs import HSTUConfig
from parity.base.work import Work
from perf_model.work.parts import INDEX, Shapes, around, elementwise, linear, lookup


def hstu_work(config: HSTUConfig, shapes: Shapes, item: int) -> dict[str, Work]:
    """By tap: module paths, `@1` for a second call, and "" for the whole model."""
    b, n = shapes["past_ids"]
    p, d, i = shapes["timestamps"][1], config.embedding_dim, config.item_embedding_dim
    sets, x = shapes["item_ids"]
    softmax = config.normalization == "softmax_rel_bias"
    # Softmax runs over all columns of the full mask: the blocks then process padded sequences.
    inner = config.sequence_width if softmax else p
    works = {
        **_embeddings(config, b * n, item, ""),
        **_preprocessing(config, b, n, p, item),
        "_valid_attn_mask": Work(0, 0, inner * inner, item * inner * inner),
    }
    blocks = []
    for number in range(config.num_blocks):
        path = f"_hstu._attention_layers.{number}"
        works |= block(config, b, inner, item, path)
        blocks.append(works[path])
    mask = item * inner * inner
    rows = item * b * inner * d
    timestamps = INDEX * b * inner
    works["_hstu"] = around(*blocks, inputs=rows + INDEX * b + timestamps + mask, outputs=rows)
    works["_output_postproc"] = Work(0, 0, item * b * p * d, item * b * p * i)
    works |= _embeddings(config, sets * x, item, "@1")
    works["_ndp_module"] = Work(2 * b * x * i, 0, item * (b * i + sets * x * i), item * b * x)
    results = item * (b * p * i + b * i + b * x)
    ids = INDEX * (b * n + b * p + b + sets * x)
    top = ("_embedding_module", "_input_features_preproc", "_hstu", "_embedding_module@1", "_ndp_module")
    works[""] = around(*(works[name] for name in top), inputs=ids, outputs=results)
    return works


def _embeddings(config: HSTUConfig, ids: int, item: int, call: str) -> dict[str, Work]:
    table = lookup(ids, config.num_items + 1, config.item_embedding_dim, item)
    whole = table
    if config.embedding == "categorical":
        categories = INDEX * min(ids, config.num_items)
        whole = around(table, weights=categories, inputs=table.input_bytes, outputs=table.output_bytes)
    return {f"_embedding_module._item_emb{call}": table, f"_embedding_module{call}": whole}


def _preprocessing(config: HSTUConfig, b: int, n: int, p: int, item: int) -> dict[str, Work]:
    path, d = "_input_features_preproc", config.embedding_dim
    parts = {f"{path}._pos_emb": lookup(p, p, d, item)}
    if config.input_preprocessor != "positional":
        width = config.rating_embedding_dim or d
        # The module casts ratings to int32 before the lookup.
        parts[f"{path}._rating_emb"] = lookup(b * n, config.num_ratings, width, item, index=4)
    ratings = INDEX * b * n if len(parts) > 1 else 0
    inputs = INDEX * b * n + item * b * n * config.item_embedding_dim + ratings
    outputs = item * (b * p * d + b * p)
    dropout = {f"{path}._emb_dropout": elementwise(b * p * d, item)}
    return {**parts, **dropout, path: around(*parts.values(), inputs=inputs, outputs=outputs)}


def block(config: HSTUConfig, b: int, p: int, item: int, path: str) -> dict[str, Work]:
    """One block over B rows of P positions, and its modules, by path."""
    d, h = config.embedding_dim, config.num_heads
    hk, hv = h * config.attention_dim, h * config.linear_dim
    rows = b * p
    gated = hv * (3 if config.concat_ua else 1)
    # One dot product over all heads with softmax, one a head without: the same FLOPs.
    attention_flops = 2 * b * p * p * (hk + hv)
    mask = item * p * p
    bias = _bias(config, b, p, item)
    parts = {
        f"{path}._norm_input": elementwise(rows * d, item),
        f"{path}._norm_attn_output": elementwise(rows * hv, item),
        f"{path}._o": linear(rows, gated, d, item),
    }
    read = item * rows * (2 * hk + hv) + mask
    if bias is not None:
        parts[f"{path}._rel_attn_bias"] = bias
        read += bias.output_bytes
    parts[f"{path}._attn"] = Work(attention_flops, 0, read, item * rows * hv)
    uvqk = linear(rows, d, 2 * hv + 2 * hk, item, bias=False)
    timestamps = INDEX * rows
    whole = around(*parts.values(), uvqk, inputs=item * rows * d + timestamps + mask, outputs=item * rows * d)
    return {**parts, path: whole}


def _bias(config: HSTUConfig, b: int, p: int, item: int) -> Work | None:
    """The relative bias, with the weights that P positions can reach."""
    if config.relative_attention_bias == "none":
        return None
    weights = 2 * p - 1
    if config.relative_attention_bias == "positional":
        # It needs only the width of the timestamps.
        return Work(0, item * weights, 0, item * p * p)
    weights += config.num_buckets + 1
    return Work(0, item * weights, INDEX * b * p, item * b * p * p)
