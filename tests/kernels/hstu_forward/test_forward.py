"""The fused forward of research HSTU against the reference model, from the same parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.hstu_attention.buckets import bucket_table, time_bucket
from kernels.hstu_forward import tiles, triton_launch, weights
from kernels.hstu_forward.schedules import AttentionTile
from tests.kernels.hstu_forward.forward_cases import (
    BOUNDARIES,
    LENGTHS,
    TILES,
    WIDE,
    assert_a_graph_serves_smaller_batches,
    assert_far_times_are_exact_or_nan,
    assert_two_parts_have_their_range,
    settings_of,
    sized,
    small_model,
    triton_forward,
    verdict,
)
from tests.kernels.marks import DEVICE, GPU, needs_gpu, needs_triton
from tests.selection import first_in_test


@needs_triton
@pytest.mark.parametrize(
    ("precision", "dot_precision"),
    [
        ("fp32", "ieee"),
        ("fp32", "fp16x3"),
        ("tf32", "fp16x3, attention fp16"),
        ("tf32", "fp16"),
        ("fp16", "ieee"),
        ("bf16", "ieee"),
    ],
)
def test_the_fused_forward_is_the_model(precision, dot_precision):
    if precision == "bf16" and not GPU:
        pytest.skip("Triton's interpreter multiplies bfloat16 as integers")
    config, model = small_model()
    settings = settings_of(config, model)
    actual = verdict(
        config,
        model,
        precision,
        LENGTHS,
        lambda state, *a: triton_forward(state, settings, dot_precision)(*a),
    )
    assert actual.passed, actual.reason


@needs_triton
@pytest.mark.parametrize("factor", [1e-4, 1e2])
def test_two_float16_parts_are_exact_below_and_nan_beyond_their_range(factor):
    assert_two_parts_have_their_range(factor, "triton")


@pytest.mark.sampled
@needs_triton
@pytest.mark.parametrize("dot_precision", ["ieee", "fp16x3"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_cut_of_a_block_is_the_model(tile, dot_precision, monkeypatch):
    config, model = small_model()
    settings = settings_of(config, model)
    monkeypatch.setattr(tiles, "block_tile", lambda *_: tile)
    actual = verdict(
        config,
        model,
        "fp32",
        BOUNDARIES,
        lambda state, *a: triton_forward(state, settings, dot_precision)(*a),
    )
    assert actual.passed, actual.reason


@needs_triton
@pytest.mark.parametrize("heads", [pytest.param(1, marks=pytest.mark.full), 2])
def test_every_cut_of_an_attention_is_the_model(heads, monkeypatch):
    config, model = small_model()
    settings = settings_of(config, model)
    monkeypatch.setattr(tiles, "fits_block_kernel", lambda forward: False)
    for tile in (AttentionTile(16, 32, 4, 1, heads=heads), AttentionTile(32, 16, 4, 2, heads=heads)):
        monkeypatch.setattr(tiles, "attention_tile", lambda *_, tile=tile: tile)
        actual = verdict(
            config, model, "fp32", BOUNDARIES, lambda state, *a: triton_forward(state, settings, "fp16x3")(*a)
        )
        assert actual.passed, actual.reason


@needs_triton
@pytest.mark.parametrize("dot_precision", [pytest.param("ieee", marks=pytest.mark.full), "fp16x3"])
@pytest.mark.parametrize(
    "changes",
    [
        sized(32, 1, 16, 40),
        sized(100, 2, 50, 50),
        {"relative_attention_bias": "positional"},
        # Two heads in a tile, in one kernel a block and in three; four; three heads that no tile fits.
        sized(64, 8, 8, 8),
        sized(70, 10, 7, 7),
        sized(16, 4, 3, 4),
        sized(48, 3, 8, 8),
        pytest.param(sized(512, 2, 32, 32), marks=pytest.mark.full),
        pytest.param(sized(24, 1, 300, 512), marks=pytest.mark.full),
    ],
    ids=str,
)
def test_other_shapes_are_the_model_too(changes, dot_precision):
    config, model = small_model(**changes)
    settings = settings_of(config, model)
    actual = verdict(
        config, model, "fp32", LENGTHS, lambda state, *a: triton_forward(state, settings, dot_precision)(*a)
    )
    assert actual.passed, actual.reason


# Multiprocessors for products of a depth of 512. In float32: blocks of 32 x 64, 64 x 64 and 64 x 128 of the
# projection, 16 x 64 and 32 x 64 of the output, and whole columns. In half types: whole columns of 32 and 16
# rows, blocks of 64 x 128, and of 32 x 64 of the output.
CUTS = (("fp16", 64), *(("fp32", n) for n in (30, 16, 600)), *(("fp16", n) for n in (16, 10, 600)))


@needs_triton
@pytest.mark.parametrize("cut", [("fp32", 64), *first_in_test(CUTS)])
def test_every_cut_of_a_deep_product_is_the_model(cut, monkeypatch):
    precision, multiprocessors = cut
    monkeypatch.setattr(triton_launch, "_multiprocessors", lambda parameters: multiprocessors)
    config, model = small_model(**sized(300, 8, 32, 64))
    settings = settings_of(config, model)
    dot = "fp16x3" if precision == "fp32" else "ieee"
    actual = verdict(
        config, model, precision, LENGTHS, lambda state, *a: triton_forward(state, settings, dot)(*a)
    )
    assert actual.passed, actual.reason


@needs_triton
@pytest.mark.parametrize("name", first_in_test(WIDE))
def test_every_cut_of_a_wide_block_is_the_model(name):
    config, model = small_model(**sized(100, 2, 50, 50))
    settings = settings_of(config, model)
    actual = verdict(
        config,
        model,
        "fp32",
        BOUNDARIES,
        lambda state, *a: triton_forward(state, settings, "fp16x3", WIDE[name])(*a),
    )
    assert actual.passed, actual.reason


@needs_triton
@pytest.mark.parametrize(
    "tile",
    [pytest.param(tile, marks=() if tile is TILES[0] else pytest.mark.full) for tile in TILES],
    ids=str,
)
def test_nothing_depends_on_memory_that_nobody_wrote(tile, monkeypatch):
    # PyTorch then fills its uninitialised tensors with NaN.
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setattr(tiles, "block_tile", lambda *_: tile)
    config, model = small_model()
    settings = settings_of(config, model)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(3).isnan().all()
        actual = verdict(
            config, model, "fp32", BOUNDARIES, lambda state, *a: triton_forward(state, settings)(*a)
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert actual.passed, actual.reason


def test_the_table_of_times_is_the_definition():
    bucket_weights = torch.randn(129)
    table = weights.time_table(bucket_weights, 0.301)
    edges = (bucket_table(128, 0.301).entries & 0xFFFFFFFF) + 0x3F800000
    patterns = torch.cat([edges - 1, edges, edges + 1]).clamp(0x3F800000, 0x5F000000)
    integers = torch.randint(1, 1 << 40, (10_000,)).float().view(torch.int32).long()
    patterns = torch.cat([patterns, integers])
    entry = table.entries[patterns >> table.shift]
    low, high = ((entry[:, i] >> (32 * (1 - i))).to(torch.int32).view(torch.float32) for i in range(2))
    actual = torch.where(patterns >= entry[:, 0] & 0xFFFFFFFF, high, low)
    difference = patterns.to(torch.int32).view(torch.float32)
    # An integer below 2^24 or a multiple of a power of two: the definition takes int64.
    whole = difference == difference.round()
    expected = bucket_weights[time_bucket(difference[whole].double().clamp(max=2.0**62).long(), 128, 0.301)]
    assert torch.equal(actual[whole], expected)
    # Below 1 second there is no edge, and one weight.
    first = table.entries[: 0x3F800000 >> table.shift, 0]
    assert (first & 0xFFFFFFFF).to(torch.int32).view(torch.float32).isnan().all()
    assert ((first >> 32).to(torch.int32).view(torch.float32) == bucket_weights[0]).all()


@needs_triton
@pytest.mark.parametrize("dot_precision", [pytest.param("ieee", marks=pytest.mark.full), "fp16x3"])
def test_times_far_apart_are_exact_and_beyond_reach_nan(dot_precision):
    assert_far_times_are_exact_or_nan("fp32", dot_precision, "triton")


@needs_gpu
@needs_triton
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_captured_graph_serves_smaller_batches(precision):
    assert_a_graph_serves_smaller_batches(precision, "ieee", "triton")


def test_biases_ahead_stay_in_the_padding():
    with pytest.raises(ValueError, match="is_ahead: block_n=256 must be at most 128"):
        AttentionTile(16, 256, 4, 1, is_ahead=True)


@needs_triton
def test_no_rows_give_no_rows():
    config, model = small_model()
    state = {name: x.to(DEVICE) for name, x in model.state_dict().items()}
    forward = triton_forward(state, settings_of(config, model))
    times = torch.zeros(2, 51, dtype=torch.int64, device=DEVICE)
    ids = torch.empty(0, dtype=torch.int64, device=DEVICE)
    assert forward(ids, torch.zeros(3, dtype=torch.int64, device=DEVICE), times, 0).shape == (0, 50)


@needs_triton
def test_what_does_not_fit_is_refused_by_name():
    config, model = small_model()
    settings = settings_of(config, model)
    state = {name: x.to(DEVICE) for name, x in model.state_dict().items()}
    with pytest.raises(ValueError, match="dot_precision='fast'"):
        triton_forward(state, settings, "fast")
    with pytest.raises(ValueError, match="_embedding_module._item_emb.weight is missing"):
        triton_forward({}, settings)
    with pytest.raises(ValueError, match=r"_uvqk: shape \(50, 200\), but num_heads=3"):
        triton_forward(state, replace(settings, num_heads=3))
    half = {name: x.half() if x.is_floating_point() else x for name, x in state.items()}
    with pytest.raises(ValueError, match="needs float32, not torch.float16"):
        triton_forward(half, settings, "fp16x3")
    key = "_hstu._attention_layers.1._o.weight"
    with pytest.raises(ValueError, match=f"{key}: an element is beyond 2,047"):
        triton_forward({**state, key: state[key] * 1e9}, settings, "fp16x3")
    forward, times = triton_forward(state, settings), torch.zeros(1, 51, dtype=torch.int64, device=DEVICE)
    with pytest.raises(ValueError, match="max_seq_len=52: the model's width has room for 51"):
        forward(times[0], torch.tensor([0, 51], device=DEVICE), times, 52)
    with pytest.raises(ValueError, match="max_seq_len=51: timestamps has room for 50"):
        forward(times[0], torch.tensor([0, 51], device=DEVICE), times[:, :50], 51)
    key = "_hstu._attention_layers.1._rel_attn_bias._pos_w"
    with pytest.raises(ValueError, match=f"{key} is missing"):
        triton_forward({name: x for name, x in state.items() if name != key}, settings)
