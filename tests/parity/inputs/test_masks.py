"""Masks of valid elements on every axis, and equality to the bit."""

import math

import numpy as np
import pytest
import torch

from parity.inputs.masks import bits, same_where_valid, valid_elements

B, N, M = 3, 4, 5
SHORT = np.arange(N) < np.array([4, 2, 1])[:, None]
LONG = np.arange(M) < np.array([5, 0, 3])[:, None]
VALID = {N: SHORT, M: LONG}


@pytest.mark.parametrize(
    "shape",
    [(), (B,), (N,), (B, 7), (B + 1, N), (B, 7, 9)],
    ids=str,
)
def test_without_a_padded_axis_all_elements_are_valid(shape):
    assert valid_elements(shape, VALID, B) is None


@pytest.mark.parametrize(
    ("shape", "mask"),
    [
        ((B, N), SHORT),
        ((B, N, 7), SHORT[:, :, None]),
        ((B, 7, N), SHORT[:, None, :]),
        ((B, M, 7), LONG[:, :, None]),
        ((B, N, N), SHORT[:, :, None] & SHORT[:, None, :]),
        ((B, N, M), SHORT[:, :, None] & LONG[:, None, :]),
        ((B, 7, N, N), SHORT[:, None, :, None] & SHORT[:, None, None, :]),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else "mask",
)
def test_every_axis_as_long_as_a_padded_one_is_masked(shape, mask):
    keep = valid_elements(shape, VALID, B)
    assert keep.ndim == len(shape)
    assert np.array_equal(np.broadcast_to(keep, shape), np.broadcast_to(mask, shape))


@pytest.mark.parametrize("row", range(B))
def test_each_row_alone_has_the_mask_that_it_has_in_the_batch(row):
    alone = {size: mask[row : row + 1] for size, mask in VALID.items()}
    for shape in [(N,), (N, 7), (N, M), (7, N, N)]:
        whole = np.broadcast_to(valid_elements((B, *shape), VALID, B), (B, *shape))
        keep = valid_elements((1, *shape), alone, 1)
        assert np.array_equal(np.broadcast_to(keep, (1, *shape)), whole[row : row + 1])


def test_an_axis_of_the_batch_is_no_padded_one():
    assert valid_elements((B, B), {N: SHORT}, B) is None
    square = np.tril(np.ones((B, B), bool))
    assert np.array_equal(valid_elements((B, B), {B: square}, B), square)


@pytest.mark.parametrize(
    ("dtype", "integer"),
    [
        (torch.bool, np.uint8),
        (torch.float16, np.int16),
        (torch.bfloat16, np.int16),
        (torch.float32, np.int32),
        (torch.int64, np.int64),
        (torch.float64, np.int64),
    ],
)
def test_bits_are_integers_of_the_same_size(dtype, integer):
    tensor = torch.tensor([[0, 1], [1, 0]], dtype=dtype)
    assert bits(tensor).dtype == integer
    assert bits(tensor).shape == (2, 2)
    # A view with other strides has the elements of its own order.
    assert np.array_equal(bits(tensor[:, :1].T), bits(tensor)[:, :1].T)


def test_equality_is_to_the_bit():
    one = torch.tensor([[0.0, math.nan], [1.0, 2.0]])
    assert same_where_valid(one, one.clone(), None) is True
    assert same_where_valid(one, torch.tensor([[-0.0, math.nan], [1.0, 2.0]]), None) is False
    assert same_where_valid(one, one.double(), None) is False
    assert same_where_valid(one, one[:1], None) is False
    assert same_where_valid(one, one.view(torch.int32), None) is False


def test_only_elements_of_the_mask_have_to_be_equal():
    one, other = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 9.0], [3.0, 9.0]])
    assert same_where_valid(one, other, np.array([[True, False]])) is True
    assert same_where_valid(one, other, np.array([[True, False], [False, True]])) is False
    assert same_where_valid(one, other, None) is False
