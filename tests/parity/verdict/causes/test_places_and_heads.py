"""Changes of a place, of the scale of heads, and of a bilinear layer's weight."""

import math

import pytest
import torch
import torch.nn.functional as F

from parity.verdict.causes.changes import FOLDS, MOST_HEADS, changes_of
from parity.verdict.causes.operations import Operation
from tests.parity.verdict.causes.test_changes import X, assert_tried, tensor, tried

aten = torch.ops.aten


def test_a_place_that_is_one_off():
    expected = {"with index 1 in place of 2 of 6": X[:, 1], "with index 3 in place of 2 of 6": X[:, 3]}
    assert_tried(expected, aten.select.int, X, 1, 2, part="index")
    # The ends have one neighbour; a negative index counts from the end.
    assert_tried({"with index 4 in place of 5 of 6": X[:, 4]}, aten.select.int, X, 1, -1, part="index")
    assert_tried({"with index 1 in place of 0 of 6": X[:, 1]}, aten.select.int, X, 1, 0, part="index")
    expected = {"with index 0 in place of 1 of 6": X[:, 0], "with index 2 in place of 1 of 6": X[:, 2]}
    assert_tried(expected, aten.select.int, X, 1, 1, part="index")


def test_the_scale_of_all_heads_in_place_of_one():
    rows = 10 * MOST_HEADS
    left, right = tensor(7, rows, 2, 3), tensor(8, rows, 3, 2)
    results = tried(aten.bmm.default, left, right)
    torch.testing.assert_close(
        results["with the result of bmm times 0.353553 = 1/sqrt(8)"], left @ right / math.sqrt(8)
    )
    torch.testing.assert_close(
        results["with the result of bmm times 2.82843 = sqrt(8)"], left @ right * math.sqrt(8)
    )
    assert _factor_of(MOST_HEADS) in results
    for no_heads in (7, 2 * MOST_HEADS):
        assert _factor_of(no_heads) not in results
    # The fewest heads, and one more than the most.
    assert _factor_of(2) in tried(aten.bmm.default, tensor(7, 6, 5, 3), tensor(8, 6, 3, 5))
    rows = 2 * (MOST_HEADS + 1)
    results = tried(aten.bmm.default, tensor(7, rows, 3, 3), tensor(8, rows, 3, 3))
    assert _factor_of(MOST_HEADS + 1) not in results


def _factor_of(heads):
    root = math.sqrt(heads)
    return f"with the result of bmm times {root:.6g} = sqrt({heads})"


def test_the_rows_of_a_product_are_no_width():
    """They count examples: the rows of a single product, and the leading axis of several."""
    sizes = range(2, 12)
    texts = tried(aten.mm.default, tensor(7, 11, 3), tensor(8, 3, 5))
    assert [size for size in sizes if f"with the result of mm times {size}" in texts] == [3, 5]
    texts = tried(aten.bmm.default, tensor(7, 11, 2, 3), tensor(8, 11, 3, 5))
    assert [size for size in sizes if f"with the result of bmm times {size}" in texts] == [2, 3, 5]


@pytest.mark.parametrize(("width", "words"), [(4, "4"), (3, "4 = sqrt(16)")])
def test_a_factor_has_one_reading(width, words):
    """4 may be a width, and is the root of another one: the simplest reading is told."""
    texts = tried(aten.mm.default, tensor(7, 2, width), tensor(8, width, 16))
    assert [text for text in texts if " times 4" in text] == [f"with the result of mm times {words}"]


def test_the_transposed_weight_of_a_bilinear_layer():
    weight, (a, b) = tensor(9, 4, 8, 8), (X[0], X[1])
    arguments = (a, weight, b, [1, 3], [0], [1, 2], [2, 3])
    expected = F.bilinear(a, b, weight.mT.contiguous())
    assert_tried(
        {"with i2 of trilinear transposed": expected}, aten._trilinear.default, *arguments, part="transposed"
    )


def test_parts_are_joined_along_the_first_axis_unless_another_one_is_named():
    first, second = tensor(1, 3, 4), tensor(2, 5, 4)
    expected = {"with operands 0 and 1 of cat exchanged": torch.cat([second, first])}
    assert_tried(expected, aten.cat.default, [first, second], part="exchanged")
    assert_tried(expected, aten.cat.default, [first, second], -2, part="exchanged")
    other = tensor(3, 3, 6)
    expected = {"with operands 0 and 1 of cat exchanged": torch.cat([other, first], 1)}
    assert_tried(expected, aten.cat.default, [first, other], 1, part="exchanged")
    # PyTorch joins an empty vector with anything.
    assert_tried({}, aten.cat.default, [first, tensor(2, 0)], 1, part="exchanged")


def folds(shape, size):
    """The changes of a view that exchange two axes: words, the kind that several have in common, result."""
    operation = Operation(aten.view.default, (tensor(1, *shape), size), {})
    changes = [change for change in changes_of(operation) if "axes" in change.text]
    return [(change.text, change.together, change.result(operation)) for change in changes]


def test_heads_that_are_split_or_joined_in_the_other_order_are_one_kind():
    x = tensor(1, 3, 5, 8)
    ((text, kind, result),) = folds((3, 5, 8), (3, 5, 2, 4))
    assert (text, kind) == ("with the last two axes of view exchanged", FOLDS)
    torch.testing.assert_close(result, x.reshape(3, 5, 4, 2).mT)
    # Not the last axis alone is split.
    ((_, kind, _),) = folds((3, 5, 8), (3, 2, 5, 4))
    assert kind == ""
    for size in ((3, 40), (3, -1)):
        ((text, kind, result),) = folds((3, 5, 8), size)
        assert (text, kind) == ("with the last two axes exchanged before a view", FOLDS)
        torch.testing.assert_close(result, x.mT.reshape(size))
    # An axis of 1 has no order; one of 2 has, and so has one before both.
    assert folds((3, 5, 1), (3, 5)) == []
    assert [kind for _, kind, _ in folds((3, 2, 8), (3, 16))] == [FOLDS]
    assert [kind for _, kind, _ in folds((1, 5, 8), (1, 40))] == [FOLDS]
    assert [kind for _, kind, _ in folds((3, 5, 1, 2, 4), (3, 5, 1, 8))] == [FOLDS]
    # Other axes than the last two are joined.
    assert [kind for _, kind, _ in folds((3, 5, 8), (15, 8))] == [""]
    ((text, _, result),) = folds((3, 4, 1), (-1, 1))
    assert text == "with the joined axes of 3 and 4 exchanged before a view"
    torch.testing.assert_close(result, tensor(1, 3, 4).T.reshape(-1, 1))
