"""Elements at other places that explain a result: transposed, shifted and permuted axes."""

import numpy as np
import pytest
import torch

from parity.verdict.patterns import COMPARED_COLUMNS, LONGEST_AXIS, SHIFTS
from tests.parity.verdict.patterned import EXACT, GARBAGE, explained, normal, ragged


@pytest.mark.parametrize("size", [2, 5])
def test_a_transpose_leaves_out_elements_that_padding_moves_into(size):
    mask = np.ones((4, size, size), bool)
    mask[:2, 0, 1] = False
    oracle = np.where(mask, normal(4, size, size), GARBAGE)
    port = np.where(mask & mask.swapaxes(1, 2), oracle.swapaxes(1, 2), -GARBAGE)
    assert explained(oracle, port, mask) == ["equals the oracle after transposing axis 1 and axis 2"]


@pytest.mark.parametrize("step", SHIFTS)
@pytest.mark.parametrize("axis", [0, 1])
def test_a_shift_leaves_out_elements_that_enter_from_outside(step, axis):
    """New elements at the end, and padding that moves into valid positions, are no part of the shift."""
    lengths = [9, 9, 7, 9, 8, 9, 9, 9, 9] if axis else [9] * 9
    mask = ragged((9, 9, 3), lengths)
    oracle = np.where(mask, normal(9, 9, 3), GARBAGE)
    port = np.roll(oracle, step, axis)
    entering = slice(None, step) if step > 0 else slice(step, None)
    port[(slice(None),) * axis + (entering,)] = 0.125
    port[port == GARBAGE] = -GARBAGE
    (text,) = explained(oracle, port, mask)
    assert text == f"equals the oracle shifted by {step:+d} along axis {axis}"


def test_a_shift_explains_more_elements_than_leave_the_axis():
    """Choices are mostly equal: where one of them is wrong, a shift leaves it out, or moves it out."""
    oracle = np.array([8.0, 8, 8, 8, 8, 8, 8, 8, 8, 8])
    for wrong in ([0], [9], [0, 1], [8, 9]):
        port = oracle.copy()
        port[wrong] = [5.0, 6.0][: len(wrong)]
        assert "shifted" not in "".join(explained(oracle, port, limit=EXACT, dtype=torch.int64))
        assert "shifted" not in "".join(explained(port, oracle, limit=EXACT, dtype=torch.int64))


def test_a_shift_that_explains_too_few_elements_does_not_hide_the_opposite_one():
    """One of two wrong elements leaves the axis by +1, and none by -1."""
    port = np.array([2.0, 3.0, 3, 3, 3, 3, 3, 3])
    oracle = np.array([1.0, 2.0, 3, 3, 3, 3, 3, 3])
    texts = explained(oracle, port, limit=EXACT, dtype=torch.int64)
    assert "equals the oracle shifted by -1 along axis 0" in texts


def test_two_exchanged_rows_are_no_shift():
    oracle = normal(2, 3, 4)
    (text,) = explained(oracle, oracle[::-1].copy())
    assert text == "equals the oracle with axis 0 permuted: 1 at 0, 0 at 1"


def test_more_moves_than_a_text_lists():
    oracle = normal(8, 3)
    (text,) = explained(oracle, oracle[[1, 0, 3, 2, 4, 6, 7, 5]])
    assert text == "equals the oracle with axis 0 permuted: 1 at 0, 0 at 1, 3 at 2, 2 at 3 and 3 more"


def test_a_permutation_of_a_long_axis_takes_too_long():
    for size, axis in ((LONGEST_AXIS, 0), (LONGEST_AXIS + 1, 1)):
        oracle = normal(size, 7)
        order = np.arange(oracle.shape[axis])
        order[[1, 5]] = 5, 1
        (text,) = explained(oracle, oracle.take(order, axis))
        assert text == f"equals the oracle with axis {axis} permuted: 5 at 1, 1 at 5"
    oracle = normal(LONGEST_AXIS + 1, 3)
    order = [0, 5, 2, 3, 4, 1, *range(6, LONGEST_AXIS + 1)]
    assert "permuted" not in "".join(explained(oracle, oracle[order]))


def test_a_permutation_is_searched_on_axes_that_count_as_a_whole():
    mask = ragged((4, 6, 7), [6, 0, 5, 4])
    order = [0, 1, 5, 3, 4, 2, 6]
    oracle = np.where(mask, normal(4, 6, 7), GARBAGE)
    (text,) = explained(oracle, np.where(mask, oracle[:, :, order], -GARBAGE), mask)
    assert text == "equals the oracle with axis 2 permuted: 5 at 2, 2 at 5"


def test_an_error_outside_the_searched_columns_is_no_permutation():
    """Row 0 has padding, so that its positions are not searched along the batch."""
    mask = ragged((4, 5, 2), [3, 5, 5, 5])
    oracle = normal(4, 5, 2)
    port = oracle.copy()
    port[2, 4, 1] += 1.0
    (text,) = explained(oracle, port, mask)
    assert text == "1 of 36 wrong elements, all at axis 0 2; at axis 1 4; at axis 2 1"


def test_padding_that_a_permutation_moves_is_left_out():
    mask = ragged((5, 7, 3), [5, 7, 6, 7, 7])
    order = [0, 3, 2, 1, 4]
    oracle = np.where(mask, normal(5, 7, 3), GARBAGE)
    port = np.where(mask & mask[order], oracle[order], -GARBAGE)
    port[:, 5:] = 0.5
    (text,) = explained(oracle, port, mask)
    assert text == "equals the oracle with axis 0 permuted: 3 at 1, 1 at 3"


@pytest.mark.parametrize("columns", [4, COMPARED_COLUMNS, COMPARED_COLUMNS + 1, 2 * COMPARED_COLUMNS])
def test_all_columns_are_searched_up_to_a_number(columns):
    """Beyond that number, every second column is: the search misses rows that differ in the others only."""
    oracle, order = np.zeros((5, columns)), [0, 3, 2, 1, 4]
    expected = ["equals the oracle with axis 0 permuted: 3 at 1, 1 at 3"]
    oracle[:, 1::4] = normal(5, len(range(1, columns, 4)))
    assert (explained(oracle, oracle[order]) == expected) is (columns <= COMPARED_COLUMNS)
    oracle[:, ::2] = normal(5, len(range(0, columns, 2)))
    assert explained(oracle, oracle[order]) == expected
