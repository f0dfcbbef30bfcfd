"""Changes of a place, of the scale of heads, and of a bilinear layer's weight."""

import math

import torch
import torch.nn.functional as F

from parity.verdict.causes.changes import MOST_HEADS
from tests.parity.verdict.causes.test_changes import X, assert_tried, tensor, tried

aten = torch.ops.aten


def test_a_place_that_is_one_off():
    expected = {"with index 1 in place of 2 of 6": X[:, 1], "with index 3 in place of 2 of 6": X[:, 3]}
    assert_tried(expected, aten.select.int, X, 1, 2, part="index")
    # The ends have one neighbour; a negative index counts from the end.
    assert_tried({"with index 4 in place of 5 of 6": X[:, 4]}, aten.select.int, X, 1, -1, part="index")
    assert_tried({"with index 1 in place of 0 of 6": X[:, 1]}, aten.select.int, X, 1, 0, part="index")


def test_the_scale_of_all_heads_in_place_of_one():
    rows = 10 * MOST_HEADS
    left, right = tensor(7, rows, 2, 3), tensor(8, rows, 3, 2)
    results = tried(aten.bmm.default, left, right)
    torch.testing.assert_close(results["with the result of bmm times 1/sqrt(8)"], left @ right / math.sqrt(8))
    torch.testing.assert_close(results["with the result of bmm times sqrt(8)"], left @ right * math.sqrt(8))
    assert f"with the result of bmm times 1/sqrt({MOST_HEADS})" in results
    for no_heads in (7, 2 * MOST_HEADS):
        assert f"with the result of bmm times 1/sqrt({no_heads})" not in results
    # The rows of a single product are no heads.
    assert "with the result of mm times 1/sqrt(2)" not in tried(aten.mm.default, X[0], X[0].T)


def test_the_transposed_weight_of_a_bilinear_layer():
    weight, (a, b) = tensor(9, 4, 8, 8), (X[0], X[1])
    arguments = (a, weight, b, [1, 3], [0], [1, 2], [2, 3])
    expected = F.bilinear(a, b, weight.mT.contiguous())
    assert_tried(
        {"with i2 of trilinear transposed": expected}, aten._trilinear.default, *arguments, part="transposed"
    )
