"""The names of a factor: constants, each value once, and several names that fit."""

import sys
from math import inf, isclose, log, nan, pi

import pytest

from parity.verdict.factor_names import CONSTANT_BY_CHANCE, CONSTANTS, _constants, names_of

OF_PI = {
    "pi": pi,
    "1/pi": 1 / pi,
    "2 pi": 2 * pi,
    "2/pi": 2 / pi,
    "pi/2": pi / 2,
    "1/(2 pi)": 1 / (2 * pi),
    "4 pi": 4 * pi,
    "4/pi": 4 / pi,
    "pi/4": pi / 4,
    "1/(4 pi)": 1 / (4 * pi),
    "pi/180": pi / 180,
    "180/pi": 180 / pi,
}


def test_multiples_and_parts_of_a_constant_have_its_name():
    constants = _constants()
    assert constants == CONSTANTS
    assert {name: value for name, value in constants.items() if "pi" in name and "sqrt" not in name} == OF_PI


def test_a_value_has_one_name_and_the_simplest():
    sizes = sorted(_constants().values())
    assert not any(isclose(one, other, rel_tol=1e-9) for one, other in zip(sizes, sizes[1:], strict=False))
    for told, left_out in (("sqrt 2", "2/sqrt 2"), ("1/sqrt 2", "sqrt 2/2"), ("2 sqrt 2", "4/sqrt 2")):
        assert told in _constants()
        assert left_out not in _constants()


OF_CONSTANTS = CONSTANT_BY_CHANCE / (
    2 * len(CONSTANTS) / log(max(CONSTANTS.values()) / min(CONSTANTS.values()))
)
"""The error at which a constant has its largest chance."""


@pytest.mark.parametrize(
    ("factor", "scale_error", "words"),
    [
        # The likeliest ones first: of constants one is as likely as another.
        (1.571, 0.0012, ", which round-off does not tell from pi/2, 11/7 or 1.57"),
        (2.303, 0.003, ", which round-off does not tell from 4/sqrt 3, ln 10 or 2.3"),
        # In so wide an interval 1/ln 10 and sqrt 3/4 lie by chance.
        (0.43, 1e-2, ", which is 3/7 to round-off"),
        # A ratio has the chance of its denominator, also where that is 2.
        (2.503, 0.002, ", which round-off does not tell from sqrt(2 pi) or 5/2"),
        # Errors at their limit.
        (0.8, 0.25, ", which is 1 to round-off"),
        (0.31, abs(0.3 / 0.31 - 1), ", which is 0.3 to round-off"),
        (3.15, abs(pi / 3.15 - 1), ", which is pi to round-off"),
        # Chances at their limit: of a ratio, a decimal and a constant; and a ratio beyond it.
        (0.5, 0.125, ", which is 1/2 to round-off"),
        (0.32, 0.078125, ", which round-off does not tell from 1/3 or 0.3"),
        (1 / pi, OF_CONSTANTS, ", which is 1/pi to round-off"),
        (0.5, 0.2, ""),
        # An integer is told whatever its chance.
        (1000.2, 0.4, ", which is 1000 to round-off"),
    ],
)
def test_the_names_that_fit(factor, scale_error, words):
    assert names_of(factor, scale_error) == words


@pytest.mark.parametrize("factor", [0.0, -0.0, 5e-324, inf, -inf, nan])
def test_a_factor_that_no_name_can_be_near_has_none(factor):
    assert names_of(factor, 1e-3) == ""


def test_the_smallest_and_the_largest_factor_end_without_an_error():
    assert names_of(sys.float_info.min, 1e-3) == ""
    assert names_of(sys.float_info.min, 0.102) == ", which is 2e-308 to round-off"
    assert names_of(-1e300, 1e-3).startswith(", which is -1")
