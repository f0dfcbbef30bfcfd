"""Faults of the fused forward, in settings, parameters and the kernels' source: the verdict catches each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernels.hstu_forward import tiles, weights
from tests.kernels.hstu_forward.forward_cases import (
    BOUNDARIES,
    LENGTHS,
    TILES,
    WIDE,
    settings_of,
    sized,
    small_model,
    triton_forward,
    verdict,
)
from tests.kernels.marks import needs_triton
from tests.kernels.mutation import mutated
from tests.selection import first_in_test

FAULTS = {
    "divisor": lambda s: replace(s, divisor=s.divisor - 1),
    "epsilon": lambda s: replace(s, epsilon=1e-2),
    "bucket divisor": lambda s: replace(s, bucket_divisor=0.302),
    "heads": lambda s: replace(s, num_heads=1, attention_dim=50, linear_dim=50),
}


@needs_triton
@pytest.mark.parametrize("fault", first_in_test(FAULTS))
def test_a_wrong_setting_is_caught(fault):
    config, model = small_model()
    settings = FAULTS[fault](settings_of(config, model))
    actual = verdict(config, model, "fp32", LENGTHS, lambda state, *a: triton_forward(state, settings)(*a))
    assert not actual.passed


@pytest.mark.sampled
@needs_triton
@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize("name", ["_uvqk", "_o.bias", "_rel_attn_bias._pos_w", "_rel_attn_bias._ts_w"])
def test_every_parameter_of_a_block_counts(name, block):
    config, model = small_model()
    settings = settings_of(config, model)

    def run(state, *arguments):
        key = f"_hstu._attention_layers.{block}.{name}"
        return triton_forward({**state, key: state[key] * 1.01}, settings)(*arguments)

    assert not verdict(config, model, "fp32", LENGTHS, run).passed


# Made in the source of the kernels, each with a tile that reaches it.
SOURCE_FAULTS = {
    "last partial block left out": (
        "tl.minimum(start_m + BLOCK_M, length), BLOCK_N",
        "tl.minimum(start_m + BLOCK_M, length) // BLOCK_N * BLOCK_N, BLOCK_N",
        1,
    ),
    "block boundary: a block of columns left out": ("tl.range(0, tl.min", "tl.range(BLOCK_N, tl.min", 1),
    "block boundary: the last block of columns short": ("cols < length)[", "cols < length - 1)[", 0),
    "last partial block of rows": ("if start_m >= length:", "if start_m + BLOCK_M > length:", 1),
    "the biases of a step for the next one": ("start_n + BLOCK_N if AHEAD", "start_n if AHEAD", 4),
    "bias off by one": ("(PAD + width - 1 + start_n", "(PAD + width + start_n", 0),
    "bias: the row's own time": ("tl.minimum(rows + 1, ", "tl.minimum(rows, ", 0),
    "bias: an edge ignored": ("tl.where(tl.abs(delta) >= edge, ", "tl.where(tl.abs(delta) < 0.0, ", 0),
    "bias: times without their upper part": ("* 16777216.0 +", "* 0.0 +", 0),
    "the other head's keys": (
        "+ first * KP + tl.arange(0, PACK * KP))[None",
        "+ (1 - first) * KP + tl.arange(0, PACK * KP))[None",
        0,
    ),
    "the norm over padded heads": ("total / (HEADS * V)", "total / (HEADS * VP)", 0),
    "the next block's projection of the residual": (
        "normalized(x.to(tl.float32), cols, eps, D), W",
        "x, W",
        0,
    ),
}
IN_MAKE_TEST = (
    "last partial block left out",
    "bias off by one",
    "bias: an edge ignored",
    "the norm over padded heads",
)
"""A fault of the rows, two of the bias, one of the norm."""


@needs_triton
@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=() if name in IN_MAKE_TEST else pytest.mark.full) for name in SOURCE_FAULTS],
)
def test_a_fault_of_the_kernel_is_caught(fault, tmp_path, monkeypatch):
    from kernels.hstu_forward import triton_kernel_block, triton_launch

    old, new, tile = SOURCE_FAULTS[fault]
    faulty = mutated(triton_kernel_block, old, new, tmp_path, monkeypatch)
    monkeypatch.setattr(triton_launch, "block_kernel", faulty.block_kernel)
    monkeypatch.setattr(tiles, "block_tile", lambda *_: TILES[tile])
    config, model = small_model()
    settings = settings_of(config, model)
    actual = verdict(
        config, model, "fp32", BOUNDARIES, lambda state, *a: triton_forward(state, settings)(*a), scale=10**5
    )
    assert not actual.passed


PACKED_FAULTS = {
    "both heads' values": ("_of_head(v, member, VP, PACK, PARTS)", "v"),
    "both heads' queries": ("qs + (_of_head(q, member, KP, PACK, PARTS),)", "qs + (q,)"),
    "the norm over padded heads": ("value % VP < V", "value < PACK * VP"),
}


@needs_triton
@pytest.mark.parametrize("fault", first_in_test(PACKED_FAULTS))
def test_a_fault_of_heads_in_one_tile_is_caught(fault, tmp_path, monkeypatch):
    from kernels.hstu_forward import triton_kernel_block, triton_launch

    faulty = mutated(triton_kernel_block, *PACKED_FAULTS[fault], tmp_path, monkeypatch)
    monkeypatch.setattr(triton_launch, "block_kernel", faulty.block_kernel)
    config, model = small_model(**sized(40, 4, 7, 7))
    settings = settings_of(config, model)
    actual = verdict(config, model, "fp32", LENGTHS, lambda state, *a: triton_forward(state, settings)(*a))
    assert not actual.passed


# In the source of a block in three kernels, each with a schedule that reaches it.
WIDE_FAULTS = {
    "a projection of rows without their mean": (
        "(x.to(tl.float32) - mean[:, None])",
        "x.to(tl.float32)",
        "in steps",
    ),
    "a projection without its norm": ("normalized(x.to(tl.float32), inner, eps, D)", "x", "all at once"),
    "the norm over padded heads": ("cols % PAD < DIM", "cols % PAD < PAD", "in steps"),
    "no residual": ("acc += tl.load(X + at", "acc += 0.0 * tl.load(X + at", "whole rows"),
    "the bias of the first columns": (
        "tl.load(bias + cols)",
        "tl.load(bias + cols % BLOCK_N)",
        "all at once",
    ),
    "states without their norm": ("(x / norm[:, None])", "x", "all at once"),
    "a split that is not added": (
        "tl.static_range(1, SPLITS)",
        "tl.static_range(2, SPLITS)",
        "shared columns",
    ),
    "splits that write over each other": (
        "tl.program_id(1).to(tl.int64) * num_rows",
        "0 * num_rows",
        "shared columns, steps",
    ),
    "half of the factor": ("tl.range(0, width, BLOCK_K)", "tl.range(0, width // 2, BLOCK_K)", "whole rows"),
}


def faulty_wide_verdict(fault, heads, name, tmp_path, monkeypatch):
    """The verdict on a model of D 100 with `heads`, a number and a size, and a fault in its kernels."""
    from kernels.hstu_forward import triton_kernel_wide, triton_launch_wide

    old, new = fault
    faulty = mutated(triton_kernel_wide, old, new, tmp_path, monkeypatch)
    for kernel in ("project_kernel", "attention_kernel", "output_kernel", "states_kernel"):
        monkeypatch.setattr(triton_launch_wide, kernel, getattr(faulty, kernel))
    number, size = heads
    config, model = small_model(**sized(100, number, size, size))
    settings = settings_of(config, model)

    def run(state, *arguments):
        return triton_forward(state, settings, "fp16x3", WIDE[name])(*arguments)

    return verdict(config, model, "fp32", LENGTHS, run)


WIDE_IN_MAKE_TEST = ("a projection of rows without their mean", "the norm over padded heads", "no residual")
"""A fault of each schedule's kernels: the norm in front, the heads, the output."""


@needs_triton
@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=() if name in WIDE_IN_MAKE_TEST else pytest.mark.full) for name in WIDE_FAULTS],
)
def test_a_fault_of_a_wide_block_is_caught(fault, tmp_path, monkeypatch):
    old, new, name = WIDE_FAULTS[fault]
    assert not faulty_wide_verdict((old, new), (2, 50), name, tmp_path, monkeypatch).passed


@pytest.mark.full
@needs_triton
def test_a_fault_of_a_norm_in_several_parts_is_caught(tmp_path, monkeypatch):
    """Three heads of 25 in 32: no power of two holds a row's factor."""
    fault = ("(start + cols) % PAD < DIM", "start + cols >= 0")
    assert not faulty_wide_verdict(fault, (3, 25), "in steps", tmp_path, monkeypatch).passed


@needs_triton
@pytest.mark.parametrize("edge", ["the diagonal unseen", "the next one seen"])
def test_a_fault_of_the_mask_is_caught(edge, monkeypatch):
    causal = weights._causal

    def faulty(position):
        result, width = causal(position), (position.numel() + 1) // 2
        at = weights.POSITION_PAD + width - 1
        if edge == "the diagonal unseen":
            result[at] = weights.UNSEEN
        else:
            result[at + 1] = position[width]
        return result

    monkeypatch.setattr(weights, "_causal", faulty)
    config, model = small_model()
    settings = settings_of(config, model)
    actual = verdict(config, model, "fp32", LENGTHS, lambda state, *a: triton_forward(state, settings)(*a))
    assert not actual.passed
