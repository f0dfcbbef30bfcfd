"""Limits of patterns: how much a change has to explain, and which elements, sizes and types count."""

import numpy as np
import pytest
import torch

from parity.verdict.distances import Distance
from parity.verdict.patterns import COMPARED_COLUMNS, LONGEST_AXIS, SHIFTS, FailedTensor, explain

GARBAGE = 1e3
EXACT = Distance(0.0, 0.0, 0.0)


def failed(oracle, port, counted=None, limit=1e-9, dtype=torch.float32):
    limits = limit if isinstance(limit, Distance) else Distance(limit, limit, limit)
    mask = np.ones(oracle.shape, bool) if counted is None else counted
    return FailedTensor(oracle, port, mask, limits, [f"axis {a}" for a in range(oracle.ndim)], dtype)


def explained(oracle, port, counted=None, **options):
    return explain(failed(oracle, port, counted, **options))


def normal(*shape, seed=5):
    return np.random.default_rng(seed).normal(size=shape)


def ragged(shape, lengths):
    """Mask of the first positions of each row."""
    rows = np.arange(shape[1]) < np.array(lengths)[:, None]
    return np.broadcast_to(rows.reshape(*rows.shape, *[1] * (len(shape) - 2)), shape).copy()


@pytest.mark.parametrize(("own", "is_explained"), [(6, False), (7, True), (12, True)])
def test_a_change_explains_more_than_half_of_the_elements(own, is_explained):
    oracle = normal(12)
    assert failed(oracle, oracle).is_explained_by(oracle, np.arange(12) < own) is is_explained


def test_only_elements_of_both_masks_count():
    oracle = normal(12)
    first, last = np.arange(12) < 10, np.arange(12) > 1
    for wrong, is_explained in ((0, True), (11, True), (2, False), (9, False)):
        port = oracle.copy()
        port[wrong] += 1
        assert failed(oracle, port, last).is_explained_by(oracle, first) is is_explained


def test_zeros_explain_nothing():
    """A change that takes everything away has the right distance from a port of zeros only."""
    port = np.zeros(12)
    assert not failed(normal(12), port).is_explained_by(port)
    assert failed(normal(12), port + 1).is_explained_by(port + 1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_tensor_with_numbers_that_are_not_finite_explains_nothing(value):
    """An argument has NaN where a number is missing; the module's integers are not equal to it."""
    port = normal(12)
    other = port.copy()
    other[3] = value
    assert not failed(normal(12, seed=6), port).is_explained_by(other)


def test_a_factor_at_the_limit_is_no_error():
    oracle = np.array([1.0, -2.0, 4.0, 8.0])
    for limit, told in ((0.25, []), (0.2499, ["equals the oracle times 1.25, which is 1 to round-off"])):
        texts = explained(oracle, 1.25 * oracle, limit=limit)
        assert [text for text in texts if "times" in text] == told


def test_an_oracle_of_zeros_has_no_factor():
    assert explained(np.zeros((3, 4)), np.full((3, 4), 0.25)) == ["equals the oracle plus 0.25"]


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (1023 / 1024, "0.999023, which is 1023/1024 to round-off"),
        (1024 / 1025, "0.999024"),
        (1.5, "1.5, which is 3/2 to round-off"),
        (2.0, "2"),
        (0.3536, "0.3536"),
        (1.23456, "1.23456"),
    ],
)
def test_a_fraction_of_small_numbers_is_told(factor, words):
    oracle = normal(5, 6)
    assert explained(oracle, oracle * factor) == [f"equals the oracle times {words}"]


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (108 / 109, "0.990826"),
        (128.4, "128.4, which is 128 to round-off"),
        (0.5, "0.5, which is 1/2 to round-off"),
    ],
)
def test_a_ratio_that_chance_explains_is_not_told(factor, words):
    """In a coarse type some ratio of large numbers lies within the limit of any factor."""
    oracle = normal(5, 6)
    coarse = Distance(0.02, 0.02, 0.005)
    assert explained(oracle, oracle * factor, limit=coarse) == [f"equals the oracle times {words}"]


@pytest.mark.parametrize(
    ("factor", "scale_error", "words"),
    [
        (1.44232, 4e-4, "1.44232, which is 1/ln 2 to round-off"),
        (1.44232, 5e-3, "1.44232, which is 1/ln 2 to round-off"),
        (-np.pi, 1e-8, "-3.14159, which is -pi to round-off"),
        (2 / np.pi, 1e-4, "0.63662, which is 2/pi to round-off"),
        (1 / 8**0.5, 1e-4, "0.353553, which is 1/(2 sqrt 2) to round-off"),
        (0.5**0.5, 1e-4, "0.707107, which is 1/sqrt 2 to round-off"),
        (np.pi / 180, 1e-3, "0.0174533, which is pi/180 to round-off"),
        # A short decimal goes before a ratio of larger numbers.
        (0.0701, 5e-3, "0.0701, which is 0.07 to round-off"),
        (0.3003, 5e-3, "0.3003, which is 0.3 to round-off"),
        # Round-off that fits several names tells none of them, the likeliest first.
        (1.44232, 2e-3, "1.44232, which round-off does not tell from 1/ln 2 or 13/9"),
        (-3.1419, 4.1e-4, "-3.1419, which round-off does not tell from -pi or -22/7"),
        (0.4302, 5e-3, "0.4302, which round-off does not tell from 3/7 or 0.43"),
        # Every number is near a constant.
        (1.44232, 5.3e-3, "1.44232"),
        (-1.0, 1e-3, "-1"),
    ],
)
def test_a_factor_has_the_names_that_chance_does_not_explain(factor, scale_error, words):
    oracle = normal(5, 6)
    limit = Distance(0.05, 0.05, scale_error)
    assert explained(oracle, oracle * factor, limit=limit) == [f"equals the oracle times {words}"]


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (1 - 2.74e-7, "(1 - 2.7e-07)"),
        (1 + 3e-8, "(1 + 3e-08)"),
        (1 - 4e-7, "(1 - 4e-07)"),
        (1 - 1e-6, "0.999999"),
    ],
)
def test_a_factor_near_1_is_told_by_its_distance(factor, words):
    oracle = normal(5, 6)
    assert explained(oracle, oracle * factor) == [f"equals the oracle times {words}"]


def test_a_factor_within_the_limit_of_1_is_none():
    """The norm alone is beyond its limit; without the factor it is within."""
    oracle, noise = normal(5, 6), normal(5, 6, seed=6)
    noise -= oracle * (noise * oracle).sum() / (oracle * oracle).sum()
    noise *= 1.9e-7 * np.linalg.norm(oracle) / np.linalg.norm(noise)
    for distance, is_told in ((0.9e-7, False), (1.1e-7, True)):
        port = oracle * (1 + distance) + noise
        texts = explained(oracle, port, limit=Distance(2e-7, 1.0, 1e-7))
        assert any("times (1 + " in text for text in texts) is is_told


def test_factors_near_1_are_told_by_their_distance():
    oracle = normal(5, 6)
    factors = np.array([1.0, 1 + 5e-10, 1 - 3e-6, 2.0, 1 + 1e-4])[:, None]
    (text,) = explained(oracle, oracle * factors)
    assert text.endswith("for each index of axis 0: 1, 1, (1 - 3e-06), 2, ...")


def test_an_exact_factor_of_integers_is_a_fraction():
    oracle = np.arange(2.0, 20.0, 2.0)
    (text,) = explained(oracle, oracle * 1.5, limit=EXACT, dtype=torch.int64)
    assert text == "equals the oracle times 1.5, which is 3/2 to round-off"


def test_masks_are_booleans_or_floating_point():
    oracle = np.tril(np.ones((6, 6)))
    for dtype in (torch.bool, torch.float16, torch.float32):
        (text,) = explained(oracle, 1.0 - oracle, dtype=dtype)
        assert text == "is the oracle's mask with zeros and ones exchanged"
    (text,) = explained(oracle, np.tril(oracle, -1), limit=EXACT, dtype=torch.int64)
    assert "mask" not in text


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


@pytest.mark.parametrize("fault", [0.0, 0.02])
def test_numbers_for_each_index_explain_most_of_an_error(fault):
    """Of noise slightly beyond its limit, fitted factors and offsets bring a part within."""
    oracle = 1.0 + np.abs(normal(40, 3))
    noise = 0.01 * normal(40, 3, seed=6)
    limit = 0.995 * np.linalg.norm(noise) / np.linalg.norm(oracle)
    limits = Distance(limit, 1.0, 1.0)
    for port in (oracle * [1.0, 1.0 + 4 * fault, 1.0], oracle + [0.0, 8 * fault, 0.0]):
        text = "".join(explained(oracle, port + noise, limit=limits))
        assert ("for each index" in text) is bool(fault)


def test_a_shift_that_explains_too_few_elements_does_not_hide_the_opposite_one():
    """One of two wrong elements leaves the axis by +1, and none by -1."""
    port = np.array([2.0, 3.0, 3, 3, 3, 3, 3, 3])
    oracle = np.array([1.0, 2.0, 3, 3, 3, 3, 3, 3])
    texts = explained(oracle, port, limit=EXACT, dtype=torch.int64)
    assert "equals the oracle shifted by -1 along axis 0" in texts


def test_numbers_of_its_own_explain_more_than_half_of_an_error():
    """All of these changes are within the limit."""
    oracle, port = np.ones(4), np.full(4, 2.0)
    for changed, explains in ((1.5, False), (1.6, True), (1.9, True)):
        own = failed(oracle, port, limit=1.0)
        assert own.is_mostly_explained_by(np.full(4, changed)) is explains


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


def test_a_row_without_counted_elements_keeps_a_factor_of_1():
    mask = ragged((4, 6, 2), [6, 5, 0, 4])
    oracle = np.where(mask, normal(4, 6, 2), GARBAGE)
    port = oracle * np.array([1.0, 2.0, 5.0, 4.0])[:, None, None]
    assert explained(oracle, port, mask) == [
        "equals the oracle times a factor for each index of axis 0: 1, 2, 1, 4"
    ]


def test_a_row_without_counted_elements_keeps_an_offset_of_0():
    mask = ragged((4, 6, 2), [6, 5, 0, 4])
    oracle = np.where(mask, normal(4, 6, 2), GARBAGE)
    port = oracle + np.array([1.0, 2.0, 5.0, 4.0])[:, None, None]
    assert explained(oracle, port, mask) == [
        "equals the oracle plus an offset for each index of axis 0: 1, 2, 0, 4"
    ]


def test_a_row_of_one_element_has_an_offset():
    mask = ragged((4, 6, 1), [6, 5, 1, 4])
    oracle = np.where(mask, normal(4, 6, 1), GARBAGE)
    port = oracle + np.array([1.0, 2.0, 5.0, 4.0])[:, None, None]
    assert explained(oracle, port, mask)[0].endswith("for each index of axis 0: 1, 2, 5, 4")


@pytest.mark.parametrize(("others", "is_told"), [(3, False), (4, True)])
@pytest.mark.parametrize("axis", [0, 1])
def test_an_index_needs_four_elements_for_a_factor_or_an_offset_of_its_own(others, is_told, axis):
    oracle = np.moveaxis(0.1 * normal(3, others), 0, axis)
    each = np.moveaxis(np.array([[1.5], [2.5], [-3.0]]), 0, axis)
    for port, words in ((oracle * each, "times a factor"), (oracle + each, "plus an offset")):
        text = "".join(explained(oracle, port))
        assert (f"equals the oracle {words} for each index of axis {axis}" in text) is is_told


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_of_the_result_s_own_type_are_not_rounded_on_the_way(dtype):
    oracle, port = normal(4, 6), torch.from_numpy(normal(4, 6, seed=6)).to(dtype).double().numpy()
    assert explained(oracle, port, dtype=dtype) == []


def test_the_coarsest_type_that_holds_all_values_is_told():
    oracle = normal(4, 6)
    for name, own, words in (
        ("float16", torch.float32, "float16"),
        ("bfloat16", torch.float32, "bfloat16"),
        ("bfloat16", torch.float16, "bfloat16"),
    ):
        rounded = torch.from_numpy(oracle).to(getattr(torch, name)).double().numpy()
        assert explained(oracle, rounded, dtype=own) == [
            f"holds only {words} values: rounded to {words} on the way"
        ]


@pytest.mark.parametrize("rounded", [np.floor, np.trunc, np.round])
def test_whole_numbers_are_values_of_every_type_and_told_as_such(rounded):
    oracle = 5.0 * normal(4, 6)
    words = "holds only whole numbers: rounded or divided as integers on the way"
    assert explained(oracle, rounded(oracle))[0] == words
    assert not any("holds only" in text for text in explained(oracle, rounded(oracle) + 2.0))


def test_rounding_to_whole_numbers_leaves_several_and_moves_none_by_1():
    words = "holds only whole numbers: rounded or divided as integers on the way"
    oracle = 1.0 + 0.3 * np.sin(normal(4, 6))
    assert not any("holds only" in text for text in explained(oracle, oracle.round()))
    oracle[:, ::2] -= 1.0
    assert words in explained(oracle, oracle.round())
    oracle[0, 0], port = 0.0, oracle.round()
    port[0, 0] = 1.0
    assert not any("holds only" in text for text in explained(oracle, port))


def test_numbers_that_a_coarser_type_makes_whole_are_told_by_the_type():
    oracle = 300.0 + 50.0 * np.abs(normal(4, 6))
    coarse = torch.from_numpy(oracle).bfloat16().double().numpy()
    assert explained(oracle, coarse) == ["holds only bfloat16 values: rounded to bfloat16 on the way"]


def test_constants_far_from_the_oracle_are_not_rounded_on_the_way():
    oracle = normal(4, 6)
    assert not any("holds only" in text for text in explained(oracle, np.full((4, 6), -10.0)))
    near = torch.from_numpy(oracle).bfloat16().double().numpy()
    assert any("holds only" in text for text in explained(oracle, near))


def test_integers_are_not_rounded():
    port = np.arange(24.0).reshape(4, 6)
    assert explained(port + normal(4, 6).round(1) + 0.05, port, dtype=torch.int32) == []


def test_many_small_errors_have_no_place():
    """The norm exceeds its limit, and no element the limit of the largest error."""
    oracle = normal(6, 7)
    port = oracle + 1e-6 * normal(6, 7, seed=6)
    assert explained(oracle, port, limit=Distance(1e-9, 1e-3, 1e-9)) == []


def test_no_elements_and_infinite_ones_have_no_pattern():
    oracle = normal(3, 4)
    assert explained(oracle, oracle + 1, np.zeros((3, 4), bool)) == []
    for side in (0, 1):
        sides = [oracle.copy(), oracle + 1]
        sides[side][1, 2] = np.inf
        assert explained(*sides) == []


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_infinite_elements_that_do_not_count_change_nothing(value):
    """Such as the scores of padded positions, which both sides set to -infinity."""
    oracle, counted = normal(4, 5, 6), ragged((4, 5, 6), [5, 3, 5, 2])
    steps = np.arange(6.0)
    for port in (oracle + steps, oracle * steps, 0.0 * oracle, np.where(oracle > 1, 2.0, oracle)):
        sides = [np.where(counted, side, value) for side in (oracle, port)]
        plain = [np.where(counted, side, 0.0) for side in (oracle, port)]
        assert explained(*sides, counted) == explained(*plain, counted) != []
        assert np.array_equal(failed(*sides, counted).wrong, failed(*plain, counted).wrong)


def test_a_factor_within_some_limits_and_beyond_another_is_one():
    oracle = normal(40, 5)
    for limit in (Distance(1e-9, 1e-3, 1e-3), Distance(1e-3, 1e-9, 1e-3), Distance(1e-3, 1e-3, 1e-9)):
        (text,) = explained(oracle, oracle * (1 + 1e-6), limit=limit)[:1]
        assert text == "equals the oracle times (1 + 1e-06)"


def test_factors_and_offsets_of_single_elements():
    """An index with one element counts in full; a factor of 1 is none."""
    oracle, counted = normal(3, 12), ragged((3, 12), [1, 12, 12])
    offsets = np.array([[3.0], [0.5], [-2.0]])
    assert explained(oracle, oracle + offsets, counted) == [
        "equals the oracle plus an offset for each index of axis 0: 3, 0.5, -2"
    ]
    factors = np.array([[1.0], [2.0], [-1.0]])
    assert explained(oracle, oracle * factors, counted, limit=Distance(1e-9, 1e-9, 0.0))[0].endswith(
        ": 1, 2, -1"
    )


def test_values_of_a_results_own_type_are_no_rounding_on_the_way():
    oracle = normal(40, 5)
    port = torch.from_numpy(oracle).bfloat16().double().numpy()
    for dtype, is_told in ((torch.float32, True), (torch.bfloat16, False)):
        texts = explained(oracle, port, dtype=dtype, limit=EXACT)
        assert any("rounded to bfloat16" in text for text in texts) is is_told
