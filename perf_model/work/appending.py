"""Incremental HSTU and STU: FLOPs and fewest bytes of each module, for making a cache and appending to it.

One forward over a padded batch makes the cache (no suffix); another one appends (`@1`): one item a row to
research HSTU, all targets to the STU. A block needs the cached keys and values, not the cached queries, and
reads the whole sequence only where it returns it. An append of research HSTU that another one follows returns
the cache as well (`@2`), so that it moves all of it.

Legend: as in `hstu` and `stu`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from configs import HSTUConfig, STUConfig
from parity.base.work import Work
from perf_model.work.hstu import block, hstu_work
from perf_model.work.parts import INDEX, Shapes, around, elementwise, linear
from perf_model.work.stu import layer, stu_work


def hstu_appending_work(config: HSTUConfig, shapes: Shapes, item: int) -> dict[str, Work]:
    """By tap, of research HSTU whose items take one position each."""
    forward = hstu_work(config, shapes, item)
    b, p, d = shapes["past_ids"][0], shapes["timestamps"][1], config.embedding_dim
    inner = config.sequence_width if config.normalization == "softmax_rel_bias" else p
    hk, hv = config.num_heads * config.attention_dim, config.num_heads * config.linear_dim
    # v, q and k; the fourth tensor of a block's cache is the block's result.
    cached = item * b * inner * (hv + 2 * hk)
    alike = ("_embedding_module", "_input_features_preproc", "_valid_attn_mask", "_output_postproc")
    works = _twice(forward, alike)
    blocks = []
    for number in range(config.num_blocks):
        path = f"_hstu._attention_layers.{number}"
        modules = block(config, b, inner, item, path)
        works |= modules | {path: _returning(modules[path], cached)}
        blocks.append(_appended_block(config, b, inner, item))
        works |= {f"{path}{part}@1": work for part, work in blocks[-1].items()}
        works[f"{path}@2"] = _returning(blocks[-1][""], cached, item * b * inner * hk)
    outputs = item * b * inner * d
    # The stack's result differs from the last block's: its padded rows are zero.
    states = config.num_blocks * (cached + outputs)
    works["_hstu"] = _returning(forward["_hstu"], states)
    # Keys and values of each block's cache, and the last block's sequence.
    cache = config.num_blocks * item * b * inner * (hk + hv) + outputs
    entering = item * b * d + 2 * INDEX * b + INDEX * b * inner + item * min(b, inner) * inner
    whole = around(*(parts[""] for parts in blocks), inputs=entering + cache, outputs=outputs)
    # The queries of each block's cache, and the sequences of all blocks but the last.
    others = config.num_blocks * item * b * inner * hk + (config.num_blocks - 1) * outputs
    return works | {"_hstu@1": whole, "_hstu@2": _returning(whole, states, others)}


def _appended_block(config: HSTUConfig, b: int, p: int, item: int) -> dict[str, Work]:
    """A block that appends a position to each of B rows of P: its modules by path, itself under ""."""
    d, h = config.embedding_dim, config.num_heads
    hk, hv = h * config.attention_dim, h * config.linear_dim
    gated = hv * (3 if config.concat_ua else 1)
    pairs = item * b * p
    has_bias = config.relative_attention_bias != "none"
    attention = Work(
        2 * b * p * (hk + hv),
        0,
        item * (b * hk + b * p * (hk + hv)) + pairs * (2 if has_bias else 1),
        item * b * hv,
    )
    parts = {
        "._norm_input": elementwise(b * d, item),
        "._attn": attention,
        "._norm_attn_output": elementwise(b * hv, item),
        "._o": linear(b, gated, d, item),
    }
    # The bias of one row a user; only the other forwards have a module for it.
    weights = item * p if has_bias else 0
    if config.relative_attention_bias == "bucketed_time_and_position":
        weights += item * (config.num_buckets + 1)
    entering = item * b * d + INDEX * b + INDEX * b * p + item * min(b, p) * p
    whole = around(
        *parts.values(),
        linear(b, d, 2 * hv + 2 * hk, item, bias=False),
        weights=weights,
        inputs=entering + item * b * p * (hk + hv + d),
        outputs=item * b * p * d,
    )
    return {**parts, "": whole}


def stu_appending_work(config: STUConfig, shapes: Shapes, item: int) -> dict[str, Work]:
    """By tap, of the STU."""
    forward = stu_work(config, shapes, item)
    b, n = shapes["seq_ids"]
    d, t, h = config.embedding_dim, config.max_num_targets, config.num_heads
    cached = item * b * n * h * (config.attention_dim + config.hidden_dim)
    scale = item if "attn_scale" in shapes else 0
    works = _twice(forward, ("_embedding_module", "_positional_encoder", "_stu_module._valid_attn_mask"))
    works |= {tap: work for tap, work in forward.items() if tap.startswith(("_split", "_output"))}
    layers = []
    for number in range(config.num_layers):
        path = f"_stu_module._stu_layers.{number}"
        works |= layer(config, b, n, n, scale * b * n, item, path)
        works[path] = _returning(works[path], cached)
        appended = layer(config, b, t, n, scale * b * t, item, path)
        # The targets' starts, and the cache, which is returned with the targets.
        entering = appended[path].input_bytes + INDEX * b + cached
        appended[path] = _returning(replace(appended[path], input_bytes=entering), cached)
        works |= {f"{tap}@1": work for tap, work in appended.items()}
        layers.append(appended[path])
    works["_stu_module"] = _returning(forward["_stu_module"], config.num_layers * cached)
    rows = item * b * t * d
    # Lengths, numbers and starts of the targets; divisors of the targets' rows.
    entering = rows + 3 * INDEX * b + scale * b * t
    cache = config.num_layers * cached
    whole = around(*layers, inputs=entering + cache, outputs=rows + cache)
    return works | {"_stu_module@1": whole}


def _twice(forward: Mapping[str, Work], paths: Iterable[str]) -> dict[str, Work]:
    """Modules with equal work in both forwards, with their parts, once for each forward."""
    alike = {
        tap: work for tap, work in forward.items() if tap.startswith(tuple(paths)) and not tap.endswith("@1")
    }
    return alike | {f"{tap}@1": work for tap, work in alike.items()}


def _returning(work: Work, cached: int, received: int = 0) -> Work:
    """The same work, with bytes of a returned cache, and with bytes received for it alone."""
    return replace(work, input_bytes=work.input_bytes + received, output_bytes=work.output_bytes + cached)
