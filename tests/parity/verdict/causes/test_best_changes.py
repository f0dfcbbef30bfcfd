"""Which of several changes that fit is told, in which words, and which are tried together."""

import pytest

from parity.verdict.causes.operations import LEFT_OUT, SHIFTED, Change, Place
from parity.verdict.causes.search import (
    MOST_JOINT,
    MOST_NAMED,
    SAME,
    _Fit,
    _in_words,
    _joint,
    _places,
    _Trial,
)


def fit(residual, text="with another operation", places=(0,), rivals=()):
    return _Fit(residual, _Trial(text, text, frozenset(places), lambda: None, lambda: None, rivals))


def test_the_smaller_residual_goes_before():
    near, far = fit(1e-9), fit(2e-9, LEFT_OUT)
    assert near.goes_before(far)
    assert not far.goes_before(near)


@pytest.mark.parametrize("more", [0.0, SAME / 2, SAME])
def test_of_equal_residuals_the_likelier_kind_goes_before(more):
    """An operation left out, another one, a number, shifted data."""
    kinds = [
        {"text": f"{LEFT_OUT}the term"},
        {},
        {"text": "times 2", "rivals": (lambda: None,)},
        {"text": f"with x {SHIFTED} +1"},
    ]
    for place, kind in enumerate(kinds):
        for other in kinds[place + 1 :]:
            assert fit(more, **kind).goes_before(fit(0.0, **other))
            assert not fit(0.0, **other).goes_before(fit(more, **kind))


def test_of_equal_changes_the_first_of_one_operation_is_told_and_those_of_several_are():
    assert fit(0.1).goes_before(fit(0.1, "with a third operation"))
    assert fit(0.1, places=(0, 1)).goes_before(fit(0.1, places=(1, 2)))
    assert not fit(0.1).goes_before(fit(0.1, places=(1,)))


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a"], "a"),
        # Operations may share their words.
        (["a", "a"], "a"),
        (["a", "b"], "a or b, which give the same result"),
        (["a", "b", "a"], "a or b, which give the same result"),
        (["a", "b", "c"], "a, b or c, which give the same result"),
        (["a", "b", "c", "d"], "a, b or with 2 other changes, which give the same result"),
        (list("abcdefg"), "a, b or with 5 other changes, which give the same result"),
    ],
)
def test_changes_with_one_result_in_words(texts, words):
    assert MOST_NAMED == 3
    assert _in_words(texts) == words


def joint(count, **options):
    """The numbers of the operations that are changed together, for so many operations of one kind."""
    changes = [(place, Change("a", lambda o: o, "operations", **options)) for place in range(count)]
    return [(text, tuple(together)) for text, _, together in _joint(changes, {})]


def test_every_selection_of_few_operations_is_changed_together():
    assert joint(1) == []
    assert joint(2) == [("with 2 operations", (0, 1))]
    assert joint(3) == [
        ("with 2 operations", (0, 1)),
        ("with 2 operations", (0, 2)),
        ("with 2 operations", (1, 2)),
        ("with 3 operations", (0, 1, 2)),
    ]
    assert len(joint(MOST_JOINT)) == 2**MOST_JOINT - MOST_JOINT - 1


@pytest.mark.parametrize(("count", "options"), [(MOST_JOINT + 1, {}), (3, {"takes_few": False})])
def test_many_operations_and_those_of_one_mistake_are_changed_all_together(count, options):
    assert joint(count, **options) == [(f"with {count} operations", tuple(range(count)))]
    assert joint(2, takes_few=False) == [("with 2 operations", (0, 1))]
    assert joint(1, takes_few=False) == []


def test_all_runs_of_a_place_are_changed_together():
    line = Place(None, 0, "model.py:3")
    changes = [
        (0, Change("a", lambda o: o, origin=line)),
        (1, Change("b", lambda o: o, origin=line)),
        (2, Change("a", lambda o: o, origin=line)),
        (3, Change("a", lambda o: o)),
    ]
    found = [(text, key, tuple(runs)) for text, key, runs in _joint(changes, _places(changes))]
    assert found == [("a, all 2 times in model.py:3", (line, "a"), (0, 2))]
