"""Limits of patterns: how much a change has to explain, and which elements count."""

import numpy as np
import pytest

from parity.verdict.distances import Distance
from parity.verdict.patterns import explain
from tests.parity.verdict.patterned import explained, failed, normal, ragged


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


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_same_undefined_element_of_both_sides_is_left_out(value):
    port, other = normal(12), normal(12)
    port[3] = other[3] = value
    assert failed(normal(12, seed=6), port).is_explained_by(other)
    assert not failed(normal(12, seed=6), port).is_explained_by(1.01 * other)
    other[3] = -value if value != value else 0.0
    assert failed(normal(12, seed=6), port).is_explained_by(other) is bool(np.isnan(value))
    # Of undefined elements alone, many changes give the same ones.
    none = np.full(12, value)
    assert not failed(normal(12, seed=6), none).is_explained_by(none)


def test_wrong_elements_are_those_that_are_not_the_same():
    oracle, port = normal(12), normal(12)
    oracle[:2] = port[:2] = np.inf
    port[2:5] = np.inf, -np.inf, np.nan
    port[6] += 1.0
    oracle[7] = -np.inf
    actual = failed(oracle, port)
    assert np.flatnonzero(actual.wrong).tolist() == [2, 3, 4, 6, 7]


@pytest.mark.parametrize(("size", "texts"), [(1, []), (2, ["equals the oracle times 3"])])
def test_a_single_number_is_no_multiple_of_another_one(size, texts):
    """Such as a loss: any number is a multiple of another one, and the sum with a third one."""
    assert explain(failed(normal(size), 3 * normal(size))) == texts
    offset = explain(failed(normal(size), normal(size) + 1.0))
    assert offset == ["equals the oracle plus 1"] * (size - 1)


def test_numbers_of_its_own_explain_more_than_half_of_an_error():
    """All of these changes are within the limit."""
    oracle, port = np.ones(4), np.full(4, 2.0)
    for changed, explains in ((1.5, False), (1.6, True), (1.9, True)):
        own = failed(oracle, port, limit=1.0)
        assert own.is_mostly_explained_by(np.full(4, changed)) is explains


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
