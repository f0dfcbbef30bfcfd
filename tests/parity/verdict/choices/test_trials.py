"""What a search for hidden choices tries: which values, in which rows, at which cost."""

import math

import pytest
import torch

from parity.runners.oracle.choices import Choices
from parity.runners.oracle.replays import Replay
from parity.verdict.choices import search as searching
from tests.parity.verdict.choices.searches import BOUND, Search


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
        (lambda x: VALUES[x.flatten()[:4].argmax(keepdim=True)], BEST, [2.5]),
    ],
)
def test_a_choice_among_all_elements_belongs_to_no_row(model, numbers, port):
    assert taken(model, numbers, port) == port
    assert taken(model, numbers, port, rows=1) == port


def test_one_of_three_items_from_outside_takes_the_last_place():
    x = wide([[0.90, 0.89, 0.88, 0.87, 0.86]])
    values = wide([1.5, 2.5, 4.5, 8.5, 16.5])
    results = [taken(lambda x: values[x.argmax(-1)], x, [value]) for value in values[1:].tolist()]
    # The fourth best item from outside is not tried. The nearest of the others is taken.
    assert results == [[2.5], [4.5], [8.5], [8.5]]
    results = [taken(lambda x: values[x.argmin(-1)], 1 - x, [value]) for value in values[1:].tolist()]
    assert results == [[2.5], [4.5], [8.5], [8.5]]


def test_a_ranking_along_the_middle_axis():
    x = wide([[[0.9, 0.0], [0.85, 0.5], [0.0, 0.9]], [[0.0, 0.9], [0.5, 0.85], [0.9, 0.0]]])
    port = [[[2.5, 4.5], [1.5, 2.5]], [[4.5, 2.5], [2.5, 1.5]]]
    # The first two items of one column are a tie in each row.
    assert taken(lambda x: VALUES[x.topk(2, 1).indices], x, port) == port
    order = [[[4.5, 1.5], [1.5, 2.5], [2.5, 4.5]], [[1.5, 4.5], [2.5, 1.5], [4.5, 2.5]]]
    assert taken(lambda x: VALUES[x.argsort(1)], x, order) == order


def test_a_ranking_is_taken_as_a_whole():
    # One item in both places is no ranking, though it is nearer.
    assert taken(lambda x: VALUES[x.topk(2, -1).indices], BEST, [[2.5, 2.5], [8.5, 4.5]]) == [
        [1.5, 2.5],
        [8.5, 4.5],
    ]


def test_a_ranking_without_ties_asks_for_no_run():
    far = wide([[0.0, 5.0, 9.0], [9.0, 0.0, 5.0]])
    port = {"y": wide([[4.5, 2.5, 1.5]] * 2)}
    assert Search(lambda x: {"y": VALUES[x.argsort(-1)]}, far, port, 2).runs == 0


def test_whole_numbers_are_no_choice_and_those_behind_them_are_tried():
    def model(x):
        whole = torch.round(torch.ones(len(x), dtype=x.dtype))
        return whole + VALUES[x.argmax(-1)]

    assert taken(model, BEST, [3.5, 5.5]) == [3.5, 5.5]


def test_a_value_must_be_nearer_than_the_one_that_is_taken():
    x = wide([[0.90, 0.89, 0.88, 0.0], [0.90, 0.89, 0.0, 0.0]])
    # The second item is the nearest in the first row; the third one is nearer than the first. The second row
    # has its own value, so that a turn is nearer in one of two rows.
    assert taken(lambda x: VALUES[x.argmax(-1)], x, [3.1, 1.5]) == [2.5, 1.5]


def test_costs_are_mean_squares_of_rows_in_units_of_a_results_error():
    oracle = {
        "by row": wide([[1.0, 2.0], [3.0, 4.0]]),
        "two a row": wide([1.0, 1.0, 1.0, 1.0]),
        "number": wide(5.0),
        "not of rows": wide([1.0, 2.0, 3.0]),
        "empty": wide([]),
        "empty rows": wide([[], []]),
    }
    port = {
        "by row": wide([[1.0, 6.0], [3.0, 4.0]]),
        "two a row": wide([4.0, 1.0, 1.0, 1.0 + 1e-7]),
        "number": wide(9.0),
        "not of rows": wide([1.0, 2.0, 6.0]),
        "empty": wide([]),
        "empty rows": wide([[], []]),
    }
    scales = dict.fromkeys(oracle, 1.0) | {"by row": 2.0, "number": 4.0}
    costs = searching._costs(oracle, port, scales, 2)
    assert costs.tolist() == pytest.approx([2.0 + 4.5, 0.5e-14, 1.0 + 3.0], rel=1e-6)
    # Without rows, all results are one.
    assert searching._costs(oracle, port, scales, 0).tolist() == pytest.approx([1 + 2.25 + 1 + 3])


def test_numbers_that_are_not_finite_cost_as_much_as_the_largest():
    exact = wide([[math.inf], [0.0], [math.inf], [0.0], [math.nan]])
    own = wide([[math.inf], [math.nan], [1.0], [1e20], [0.0]])
    costs = searching._costs({"y": exact}, {"y": own}, {"y": 1.0}, 5)
    assert costs.tolist() == [0.0, 1e12, 1e12, 1e12, 1e12, 0.0]


@pytest.mark.parametrize(
    ("reference", "exact", "scale"),
    [
        # The root mean square of the error, and the unit roundoff of the results.
        ([3.0, 5.0], [3.0, 4.0], math.sqrt(0.5) + math.sqrt(12.5) / 256),
        ([1.0, 2.0], [1.0, 2.0], math.sqrt(2.5) / 256),
        # Results without an error have no unit.
        ([0.0, 0.0], [0.0, 0.0], 1.0),
        ([math.inf, 1.0], [math.inf, 1.0], 1.0),
    ],
)
def test_the_unit_of_a_results_distance(reference, exact, scale):
    replay = Replay(Choices(), {"y": wide(exact)}, {"y": wide(reference)})
    assert searching._scale(replay, "y", BOUND) == pytest.approx(scale)


def test_a_value_that_the_port_shows_is_not_tried():
    own = torch.tensor([0, 3])
    shown = {0: (own, torch.tensor([True, False]))}
    port = {"y": wide([2.5, 4.5])}
    found = Search(lambda x: {"y": VALUES[x.argmax(-1)]}, BEST, port, 2, prescribed=shown)
    assert found.results["y"].tolist() == [1.5, 4.5]
    assert found.taken[0][1].tolist() == [True, True]
    assert shown[0][1].tolist() == [True, False]


def test_rows_are_tried_together_and_without_rows_one_by_one():
    model, port = (lambda x: {"y": VALUES[x.argmax(-1)]}), {"y": wide([2.5, 4.5] * 4)}
    # One other item is within the limit in each row. Each half of the rows shows that the others stay, and
    # the last run has all of them.
    rows = torch.cat([BEST] * 4)
    assert Search(model, rows, port, 8).runs == 3
    assert Search(model, rows, port, 0).runs == 8
    # The rows of other choices, and of rankings along an axis that is none of rows.
    gates = (lambda x: {"y": torch.where(x > 0.5, 1.5, 2.5)}), wide([[0.52]] * 6)
    assert Search(*gates, {"y": wide([[2.5]] * 6)}, 6).runs == 3
    columns = lambda x: {"y": VALUES[x[:, :3].T.argmax(0)]}  # noqa: E731
    x = wide([[0.9, 0.85, 0.0], [0.0, 0.85, 0.9]] * 3)
    assert Search(columns, x, {"y": wide([2.5, 2.5] * 3)}, 6).runs == 3
    # A port that is no nearer takes nothing.
    found = Search(model, BEST, {"y": wide([2.0, 6.5])}, 2)
    assert (found.taken, found.runs) == ({}, 2)


def recurrent(x):
    """Time-major states (T, 2), which fall by half and rise by what a step opens."""
    opened, state, states = (x > 0.5).double() * wide([8.0, 1.0]), torch.zeros(2, dtype=x.dtype), []
    for step in opened:
        state = state / 2 + step + 0.25
        states.append(state)
    return torch.stack(states)


def test_a_choice_that_reaches_the_rows_behind_it_takes_no_other_with_it():
    # Every step has a tie. The first one alone is the port's other choice. It brings all steps nearer, and
    # tried together with it the other ties would be nearer too.
    numbers = wide([[0.52, 0.0], [0.0, 0.52], [0.0, 0.52], [0.0, 0.52]])
    port = numbers.clone()
    port[0, 0] = 0.48
    assert torch.equal(wide(taken(recurrent, numbers, recurrent(port).tolist())), recurrent(port))


def test_a_choice_that_another_row_shows_is_taken():
    def spread(x):
        """Of square numbers (N, N): the share of each column in its open ones, at another row."""
        opened = (x > 0.5).double()
        return (opened / (opened.sum(0) + 1)).roll(1, 0)

    numbers = wide([[0.52, 0.9, 0.9], [0.0, 0.52, 0.9], [0.9, 0.0, 0.52]])
    port = numbers.clone()
    port[1, 1] = port[2, 2] = 0.48
    assert torch.equal(wide(taken(spread, numbers, spread(port).tolist())), spread(port))


def test_a_value_that_is_as_near_is_not_taken():
    model, port = (lambda x: {"y": VALUES[x.argmax(-1)]}), {"y": wide([2.0])}
    for rows in (0, 1):
        assert Search(model, BEST[:1], port, rows).taken == {}


def test_every_one_of_many_rows_has_its_turn():
    rows = torch.cat([BEST] * 4)
    assert taken(lambda x: VALUES[x.argmax(-1)], rows, [2.5, 4.5] * 4) == [2.5, 4.5] * 4
    # Where the port is a little off in some rows, all of them are tried together as well.
    port = {"y": wide([2.5, 4.6] * 4)}
    assert Search(lambda x: {"y": VALUES[x.argmax(-1)]}, rows, port, 8).runs == 3


def test_a_choice_that_the_last_row_alone_shows_is_taken():
    x = torch.cat([BEST[:1], wide([[0.0, 0.0, 0.9, 0.0]] * 2)])
    assert taken(lambda x: VALUES[x.argmax(-1)].roll(-1), x, [4.5, 4.5, 2.5]) == [4.5, 4.5, 2.5]


def test_what_one_row_gains_is_not_lost_where_another_one_depends_on_others():
    def model(x):
        first, second = x.argmax(-1)
        return torch.stack([VALUES[first] + 0.25 * (second == 2), VALUES[second]])

    assert taken(model, BEST, [2.5, 8.5]) == [2.5, 8.5]


def test_a_choice_that_a_number_shows_is_tried_whatever_the_other_rows_show():
    def loss(x):
        best = x.argmax(-1)
        return {"loss": VALUES[best][0] + 0 * best[1], "x": x.sum(-1)}

    port = {"loss": wide(2.5), "x": BEST.sum(-1)}
    assert Search(loss, BEST, port, 2).results["loss"] == 2.5


def test_a_number_is_compared_under_the_choices_that_rows_show():
    def model(x):
        values = VALUES[x.argmax(-1)]
        return {"y": torch.stack([values[0], 0 * values[1]]), "loss": values[0] + values[1] / 8}

    port = {"y": wide([2.5, 0.0]), "loss": wide(2.5 + 8.5 / 8)}
    found = Search(model, BEST, port, 2)
    assert found.results["y"].tolist() == [2.5, 0.0]
    # The second row's choice would be nearer than without the first row's.
    assert found.results["loss"] == port["loss"]


def test_a_choice_that_a_number_alone_shows_is_taken():
    def loss(x):
        return {"loss": VALUES[x.argmax(-1)].mean(), "x": x.sum(-1)}

    port = {"loss": wide([2.5, 8.5]).mean(), "x": BEST.sum(-1)}
    found = Search(loss, BEST, port, 2)
    assert found.results["loss"] == port["loss"]
    # Without a tie, the number stays.
    far = wide([[0.9, 0.0, 0.0, 0.1], [0.0, 0.1, 0.0, 0.9]])
    assert Search(loss, far, port, 2).taken == {}


def test_a_search_ends_after_a_number_of_trials(monkeypatch):
    model, port = (lambda x: {"y": VALUES[x.argmax(-1)]}), {"y": wide([2.5, 4.5])}
    for most, values in ((1, [2.5, 8.5]), (2, [2.5, 4.5])):
        monkeypatch.setattr(searching, "MOST_TRIALS", most)
        assert Search(model, BEST, port, 2).results["y"].tolist() == values
    rows, port = torch.cat([BEST, BEST[:1]]), {"y": wide([2.5, 4.5, 2.5])}
    assert Search(model, rows, port, 3).results["y"].tolist() == [2.5, 4.5, 1.5]


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
        (
            lambda x: torch.where(torch.arange(4)[:, None] == x.repeat(1, 2).argmax(-2), 1.5, 2.5),
            [[2.5] * 4, [2.5] * 4, [2.5] * 4, [1.5] * 4],
        ),
    ],
)
def test_a_ranking_of_rows_belongs_to_none_of_them(model, port):
    own = model(SIDES)
    assert own.tolist() != port
    assert torch.equal(own[0], wide(port)[0])
    assert taken(model, SIDES, port) == port
