"""Names of axes, the common places of wrong elements, and the number of results with as few of them."""

import math

import numpy as np
import pytest
import torch

from parity.verdict.distances import Distance
from parity.verdict.patterns import LISTED, FailedTensor, all_at, named_axes

AXES = ("rows", "columns")


def wrong(shape, *places):
    mask = np.zeros(shape, bool)
    for place in places:
        mask[place] = True
    return mask


def test_the_batch_and_the_sequence_have_names():
    assert named_axes((5, 7, 3, 7), 5, {7}) == (
        "the batch",
        "the sequence (axis 1)",
        "axis 2",
        "the sequence (axis 3)",
    )
    # A batch of the same size as a sequence stays the batch.
    assert named_axes((7, 7), 7, {7}) == ("the batch", "the sequence (axis 1)")


@pytest.mark.parametrize(
    ("shape", "names"), [((), ()), ((5,), ("the batch",)), ((7, 7), ("axis 0", "axis 1"))]
)
def test_a_tensor_without_the_batch_has_numbers(shape, names):
    assert named_axes(shape, 5, {7}) == names


@pytest.mark.parametrize("count", [1, LISTED, LISTED + 1])
def test_few_indices_of_an_axis_are_listed(count):
    mask = wrong((12, 3), np.arange(count) * 2)
    listed = f", all at rows {', '.join(str(2 * index) for index in range(count))}"
    assert all_at(mask, AXES) == (listed if count <= LISTED else "")


def test_neighbouring_indices_are_a_range_where_they_are_too_many_to_list():
    mask = wrong((12, 20), (slice(None), slice(6, 15)))
    mask[11, 11:] = False
    assert all_at(mask, AXES) == ", all at columns 6 to 14"
    mask[0, 4] = True
    assert all_at(mask, AXES) == ""


def test_one_row_or_column_has_no_diagonal():
    assert all_at(wrong((5, 1), (0, 0)), AXES) == ", all at rows 0"
    assert all_at(wrong((1, 5), (0, 0)), AXES) == ", all at columns 0"
    two = wrong((3, 2), (1, 0), (2, 1))
    assert all_at(two, AXES).endswith("; 1 below the diagonal (indices of rows larger by 1 than of columns)")


def test_columns_beyond_all_rows_say_nothing_of_the_diagonal():
    """No element of these columns can lie on the other side."""
    mask = wrong((12, 20), (slice(None), slice(12, 20)))
    assert all_at(mask, AXES) == ", all at columns 12 to 19"
    assert all_at(mask.T, AXES) == ", all at rows 12 to 19"
    mask = np.fromfunction(lambda row, column: (row < column) & (column > 10), (12, 20))
    assert "above the diagonal" in all_at(mask, AXES)
    assert "below the diagonal" in all_at(mask.T, AXES)


def test_all_indices_of_an_axis_are_no_place():
    assert all_at(wrong((3, 12), slice(None)), AXES) == ""


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (lambda row, column: row == column, "on the diagonal (equal indices of rows and columns)"),
        (lambda row, column: row < column, "above the diagonal (indices of columns larger than of rows)"),
        (lambda row, column: row > column, "below the diagonal (indices of rows larger than of columns)"),
        (
            lambda row, column: row == column - 1,
            "1 above the diagonal (indices of columns larger by 1 than of rows)",
        ),
        (
            lambda row, column: row == column + 2,
            "2 below the diagonal (indices of rows larger by 2 than of columns)",
        ),
        (lambda row, column: row <= column, None),
        (lambda row, column: row >= column, None),
    ],
)
def test_a_side_of_the_diagonal(of, words):
    mask = np.fromfunction(of, (9, 9))
    assert all_at(mask, AXES) == (f", all {words}" if words else "")
    # The diagonal is that of the last two axes.
    for stacked in (np.stack([mask, mask]), mask[None]):
        assert all_at(stacked, ("batch", *AXES)) == all_at(mask, AXES)


def test_one_element_has_no_distance_from_the_diagonal():
    places = all_at(wrong((9, 9), (5, 2)), AXES)
    assert (
        places == ", all at rows 5; at columns 2; below the diagonal (indices of rows larger than of columns)"
    )
    assert all_at(wrong((9, 9), (5, 2), (6, 3)), AXES).endswith(
        "; 3 below the diagonal (indices of rows larger by 3 than of columns)"
    )


@pytest.mark.parametrize(("shape", "name"), [((9, 1), "rows"), ((1, 9), "columns"), ((9,), "rows")])
def test_a_vector_has_no_diagonal(shape, name):
    mask = np.zeros(shape, bool)
    mask.ravel()[2:] = True
    assert all_at(mask, AXES[: len(shape)]) == f", all at {name} 2 to 8"


def test_no_wrong_element_has_no_place():
    assert all_at(wrong((9, 9)), AXES) == ""


@pytest.mark.parametrize(
    ("oracle", "port", "dtype", "possible"),
    [
        # None wrong, or one of four: the right result counts as well.
        ([0, 1, 1, 0], [0, 1, 1, 0], torch.bool, 1),
        ([0, 1, 1, 0], [0, 1, 1, 1], torch.bool, 1 + 4),
        ([0, 1, 1, 0], [1, 1, 1, 1], torch.bool, 1 + 4 + 6),
        # A wrong element of three values has two others.
        ([0, 1, 2, 0], [0, 1, 2, 1], torch.int64, 1 + 4 * 2),
        ([0.0, 1, 1, 0], [0, 1, 1, 1], torch.float32, 1 + 4),
        ([0.0, 1, 2, 0], [0, 1, 2, 1], torch.float32, math.inf),
        ([0, 1] * 500, [1, 0] * 500, torch.bool, math.inf),
    ],
)
def test_the_number_of_results_with_as_few_wrong_elements(oracle, port, dtype, possible):
    oracle, port = np.array(oracle, dtype=np.float64), np.array(port, dtype=np.float64)
    limit = Distance(0.0, 0.0, 0.0)
    own = FailedTensor(oracle, port, np.ones(oracle.shape, bool), limit, ["rows"], dtype)
    assert own.possible_results == possible
    # Elements that do not count are none of them.
    twice = [np.concatenate([side, side]) for side in (oracle, port)]
    counted = np.arange(2 * len(oracle)) < len(oracle)
    assert FailedTensor(*twice, counted, limit, ["rows"], dtype).possible_results == possible
