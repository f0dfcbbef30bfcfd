"""Factors and offsets that explain a result: of all elements, or of each index of an axis."""

import numpy as np
import pytest
import torch

from parity.verdict.distances import Distance
from tests.parity.verdict.patterned import EXACT, GARBAGE, explained, normal, ragged


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
