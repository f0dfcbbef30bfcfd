"""A model's weights in the layouts of the CUDA C++ kernels."""

from __future__ import annotations

import pytest
import torch

from kernels.hstu_forward.hopper_launch import WIDEST
from kernels.hstu_forward.hopper_weights import (
    WIDTH,
    chunks_of,
    output_of,
    shares_of,
    stream_of,
    swizzled,
    uvqk_of,
    weights_of,
)
from kernels.hstu_forward.weights import Shape
from tests.kernels.hstu_forward.forward_cases import sized, small_model
from tests.kernels.hstu_forward.test_hopper import WIDE, parameters_of


def test_weights_have_each_head_in_its_columns():
    """Three heads of 8 keys and 7 values, which the other form stores 16 wide."""
    shape = Shape(1, 3, 8, 7, 48)
    assert (shape.kp, shape.vp) == (16, 16)
    stored = torch.zeros(2, shape.gates + shape.factors, shape.dp)
    for kind in range(4):
        for head in range(3):
            for element in range(8 if kind % 2 else 7):
                stored[:, kind * 48 + head * 16 + element, :48] = 1000 * kind + 100 * head + element + 1
    laid = uvqk_of(stored, shape).view(2, 4, WIDTH, WIDTH)
    assert not laid[..., 48:].any()
    for kind in range(4):
        expected = torch.zeros(WIDTH)
        for head in range(3):
            for element in range(8 if kind % 2 else 7):
                expected[8 * head + element] = 1000 * kind + 100 * head + element + 1
        assert torch.equal(laid[0, kind, :, 0], expected)
        assert torch.equal(laid[1, kind, :, 47], expected)


def test_the_swizzle_is_the_kernels_and_loses_nothing():
    x = torch.arange(2 * 16 * WIDTH).view(2, 16, WIDTH)
    laid = swizzled(x)
    for row in range(16):
        for chunk in range(8):
            at = 8 * (chunk ^ (row & 1) << 2 ^ (row >> 3 & 1) << 1)
            assert torch.equal(laid[:, row, at : at + 8], x[:, row, 8 * chunk : 8 * chunk + 8])


def test_weights_of_the_other_forms_packed_heads_keep_their_columns():
    shape = Shape(1, 8, 8, 8, 64)
    stored = torch.randn(1, 256, 64)
    assert torch.equal(uvqk_of(stored, shape), stored)


def shape_of(dim: int, heads: int, attention_dim: int, linear_dim: int) -> Shape:
    return Shape(2, heads, attention_dim, linear_dim, dim)


@pytest.mark.parametrize(
    ("shape", "shares", "chunks"),
    [
        (shape_of(64, 2, 32, 32), 1, 1),
        (shape_of(65, 1, 16, 16), 2, 2),
        (shape_of(64, 3, 32, 32), 2, 2),
        (shape_of(256, 4, 64, 64), 4, 4),
        (shape_of(256, 8, 32, 25), 4, 4),
        (shape_of(300, 5, 50, 60), 8, 8),
        (shape_of(512, 2, 16, 40), 2, 8),
        (shape_of(96, 12, 8, 7), 4, 4),
        (shape_of(WIDEST, 8, 64, 64), 8, 8),
    ],
)
def test_thread_blocks_share_columns_in_whole_chunks(shape, shares, chunks):
    assert (shares_of(shape), chunks_of(shape)) == (shares, chunks)


def test_the_stream_has_each_thread_block_s_weights_in_the_order_of_use():
    """Stages of a projection by inner indices, then those of each chunk of the output."""
    shape = shape_of(200, 4, 64, 64)
    dim, columns = chunks_of(shape) * WIDTH, shares_of(shape) * WIDTH
    projection = torch.arange(2 * 4 * columns * dim, dtype=torch.float32).view(2, 4, columns, dim)
    output = -torch.arange(2 * dim * columns, dtype=torch.float32).view(2, dim, columns)
    stream = stream_of([projection.flatten(1, 2)] * 3, [output] * 3, shares_of(shape))
    stages = dim // 32
    assert stream.shape == (4, 3, stages + columns // 128, 2 * 4 * WIDTH * 32)
    for share in range(4):
        own = slice(share * WIDTH, (share + 1) * WIDTH)
        for stage in range(stages):
            expected = projection[:, :, own, stage * 32 : (stage + 1) * 32]
            assert torch.equal(stream[share, 1, stage].view(2, 4, WIDTH, 32), expected)
        for stage in range(columns // 128):
            expected = output[:, own, stage * 128 : (stage + 1) * 128].unflatten(2, (4, 32)).transpose(1, 2)
            assert torch.equal(stream[share, 1, stages + stage].view(2, 4, WIDTH, 32), expected)


def test_padded_weights_are_zero_and_no_weight_is_lost():
    parameters = parameters_of(**sized(100, 5, 50, 60))
    shape, block = parameters.shape, parameters.blocks[0]
    assert uvqk_of(block.uvqk, shape).shape == (2, 4 * 512, 512)
    assert output_of(block, shape).shape == (2, 512, 512)
    for laid, stored in ((uvqk_of(block.uvqk, shape), block.uvqk), (output_of(block, shape), block.output)):
        assert torch.equal(laid[laid != 0].sort().values, stored[stored != 0].sort().values)


def test_a_wide_model_has_one_stream():
    config, model = small_model(**WIDE)
    weights = weights_of(model.state_dict(), parameters_of(**WIDE))
    assert (weights.shares, weights.output) == (2, None)
    assert weights.output_bias.shape == (config.num_blocks, 2 * WIDTH)
