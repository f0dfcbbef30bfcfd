"""Patterns of modules: stars within names, and no pattern that takes long."""

import pytest

from parity.base.module_patterns import covers, matches


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*", "", True),
        ("*", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("a.b*c", "a.bc", True),
        ("a.b*c", "a.b", False),
        ("b*b", "b", False),
        ("*b*d*", "abcde", True),
        ("*d*b*", "abcde", False),
        ("a.", "a.", True),
        ("a+", "aa", False),
    ],
)
def test_a_star_is_any_text_within_a_name(pattern, path, fits):
    assert matches(pattern, path) is fits


def test_a_pattern_of_many_stars_takes_no_time():
    assert matches("*a" * 5000 + "*", "a" * 5000)
    assert not matches("*a" * 5000 + "b", "a" * 20_000)
    assert covers("*" * 10_000, "emb_l.0")
