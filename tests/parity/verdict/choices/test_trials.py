"""What a search for hidden choices tries: which values, in which rows, at which cost."""

import pytest
import torch

from parity.verdict.choices import search as searching
from tests.parity.verdict.choices.searches import Search


def wide(values):
    return torch.tensor(values, dtype=torch.float64)


VALUES = wide([1.5, 2.5, 4.5, 8.5])
"""Of four items, none of them a whole number."""


def taken(model, numbers, port, rows=None):
    """The values under the choices that a search takes, of a model with one result."""
    rows = len(numbers) if rows is None else rows
    return Search(lambda x: {"y": model(x)}, numbers, {"y": wide(port)}, rows).results["y"].tolist()


BEST = wide([[0.9, 0.85, 0.0, 0.1], [0.0, 0.1, 0.85, 0.9]])
"""The first two and the last two items are ties."""
WORST = 1 - BEST

# The model, its numbers, and the port's result, which rounding explains.
EXPLAINED = {
    "the largest": (lambda x: VALUES[x.argmax(-1)], BEST, [2.5, 4.5]),
    "the smallest": (lambda x: VALUES[x.argmin(-1)], WORST, [2.5, 4.5]),
    "the largest with its axis": (lambda x: VALUES[x.argmax(-1, keepdim=True)], BEST, [[2.5], [4.5]]),
    "the largest, of one row": (lambda x: VALUES[x.argmax(-1)], BEST, [1.5, 4.5]),
    "the largest along the first axis": (lambda x: VALUES[x.T.argmax(0)], BEST, [2.5, 4.5]),
    "two neighbours": (lambda x: VALUES[x.topk(2, -1).indices], BEST, [[2.5, 1.5], [4.5, 8.5]]),
    "from the smallest": (
        lambda x: VALUES[x.topk(2, -1, largest=False).indices],
        WORST,
        [[2.5, 1.5], [4.5, 8.5]],
    ),
    "of a sort": (
        lambda x: VALUES[x.argsort(-1, descending=True)],
        BEST,
        [[2.5, 1.5, 8.5, 4.5], [4.5, 8.5, 2.5, 1.5]],
    ),
    "from outside": (lambda x: VALUES[x.topk(1, -1).indices], BEST, [[2.5], [4.5]]),
    "one up": (lambda x: torch.round(x) / 8, wide([[2.48], [3.2]]), [[0.375], [0.375]]),
    "one down": (lambda x: torch.round(x) / 8, wide([[2.52], [3.2]]), [[0.25], [0.375]]),
    "a comparison": (lambda x: torch.where(x > 0.5, 1.5, 2.5), wide([[0.52], [0.9]]), [[2.5], [1.5]]),
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_every_kind_of_a_choice_has_trials(name):
    model, numbers, port = EXPLAINED[name]
    assert model(numbers).tolist() != port
    assert taken(model, numbers, port) == port
    # Without rows, all choices are tried one after the other.
    assert taken(model, numbers, port, rows=0) == port


@pytest.mark.parametrize(
    ("model", "numbers", "port"),
    [
        (lambda x: VALUES[x.flatten()[:4].argmax()[None]], BEST, [2.5]),
        (lambda x: VALUES[x.flatten()[:4].argmin()[None]], WORST, [2.5]),
    ],
)
def test_a_choice_among_all_elements_belongs_to_no_row(model, numbers, port):
    assert taken(model, numbers, port) == port


def test_one_of_three_items_from_outside_takes_the_last_place():
    x = wide([[0.90, 0.89, 0.88, 0.87, 0.86]])
    values = wide([1.5, 2.5, 4.5, 8.5, 16.5])
    results = [taken(lambda x: values[x.argmax(-1)], x, [value]) for value in values[1:].tolist()]
    # The fourth best item from outside is not tried. The nearest of the others is taken.
    assert results == [[2.5], [4.5], [8.5], [8.5]]


def test_a_value_that_the_port_shows_is_not_tried():
    own = torch.tensor([0, 3])
    shown = {0: (own, torch.tensor([True, False]))}
    port = {"y": wide([2.5, 4.5])}
    found = Search(lambda x: {"y": VALUES[x.argmax(-1)]}, BEST, port, 2, prescribed=shown)
    assert found.results["y"].tolist() == [1.5, 4.5]
    assert found.taken[0][1].tolist() == [True, True]
    assert shown[0][1].tolist() == [True, False]


def test_rows_are_tried_together_and_without_rows_one_by_one():
    model, port = (lambda x: {"y": VALUES[x.argmax(-1)]}), {"y": wide([2.5, 4.5])}
    # One other item is within the limit in each row.
    assert Search(model, BEST, port, 2).runs == 1
    assert Search(model, BEST, port, 0).runs == 2
    # Of two rows one comes nearer: its result alone is another run.
    assert Search(model, BEST, {"y": wide([1.5, 4.5])}, 2).runs == 2
    # A port that is no nearer takes nothing.
    found = Search(model, BEST, {"y": wide([2.0, 6.5])}, 2)
    assert (found.taken, found.runs) == ({}, 1)


def test_a_search_ends_after_a_number_of_trials(monkeypatch):
    model, port = (lambda x: {"y": VALUES[x.argmax(-1)]}), {"y": wide([2.5, 4.5])}
    for most, values in ((1, [2.5, 8.5]), (2, [2.5, 4.5])):
        monkeypatch.setattr(searching, "MOST_TRIALS", most)
        assert Search(model, BEST, port, 2).results["y"].tolist() == values


def test_results_that_cannot_be_compared_say_nothing():
    def model(x):
        return {"y": VALUES[x.argmax(-1)], "other": 2 * VALUES[x.argmax(-1)]}

    port = {"y": wide([2.5, 4.5]), "other": wide([3.0, 17.0, 0.0]), "more": wide([1.0])}
    assert Search(model, BEST, port, 2).results["y"].tolist() == [2.5, 4.5]


SIDES = wide([[0.0, 0.5], [0.3, 0.0], [0.6, 0.90], [0.9, 0.85]])
"""Four rows. The last two of the second column are a tie."""


@pytest.mark.parametrize(
    ("model", "port"),
    [
        # The length of the axis is that of the batch, whose row 0 has no change.
        (lambda x: VALUES[x.argsort(0)], [[1.5, 2.5], [2.5, 1.5], [4.5, 4.5], [8.5, 8.5]]),
        (
            lambda x: VALUES[x.topk(4, 0, largest=False).indices],
            [[1.5, 2.5], [2.5, 1.5], [4.5, 4.5], [8.5, 8.5]],
        ),
        # Two items among four rows: the number of columns, which the choice has, says nothing of rows.
        (
            lambda x: torch.where(torch.arange(4)[:, None] == x.repeat(1, 2).argmax(0), 1.5, 2.5),
            [[2.5] * 4, [2.5] * 4, [2.5] * 4, [1.5] * 4],
        ),
    ],
)
def test_a_ranking_of_rows_belongs_to_none_of_them(model, port):
    own = model(SIDES)
    assert own.tolist() != port
    assert torch.equal(own[0], wide(port)[0])
    assert taken(model, SIDES, port) == port
