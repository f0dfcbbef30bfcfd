"""The port's choices, as its integers show them: read off a result, or found by trying every value."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from parity.runners.oracle.choices import Choices
from parity.verdict.choices import packed, proposals
from parity.verdict.choices.proposals import propose


def wide(values):
    return torch.tensor(values, dtype=torch.float64)


SCORES = wide([[0.1, 0.5, 0.9, 0.3], [0.8, 0.6, 0.2, 0.0], [0.2, 0.95, 0.7, 0.6]])
"""The best items are 2, 0 and 1, the best two [2, 1], [0, 1] and [1, 2], the worst 0, 3 and 0."""
RANKED = wide([[0.9, 0.8, 0.7, 0.1], [0.1, 0.7, 0.8, 0.9]])
"""The best three items are [0, 1, 2] and [3, 2, 1]."""
DEEP = wide([[[0.1, 0.9]], [[0.5, 0.5]], [[0.9, 0.1]]])
"""Along the first axis, the order is 0, 1, 2 and 2, 1, 0."""
EDGES = wide([0.25, 0.5, 0.75])
SEVEN = torch.tensor([7])
IDS = torch.tensor([70, 71, 72, 73])
SHARED = torch.tensor([7, 7, 9, 7])
"""Three items have one id."""
NONE = [None] * 3


def proposed(model, numbers, port, dtype=torch.int64):
    """The choices that results of the port show, and their taps; None is an element that nothing shows."""
    with Choices() as recorded:
        own = model(numbers.clone())
    shown = {}
    results = {tap: torch.tensor(values, dtype=dtype) for tap, values in port.items()}
    choices, taps = propose(recorded, own, results)
    for number, (values, mask) in choices.items():
        own_value = recorded.choices[number].value
        assert (values.shape, values.dtype, mask.shape) == (own_value.shape, own_value.dtype, own_value.shape)
        shown[number] = _hidden(values.tolist(), mask.tolist())
    return shown, taps


def _hidden(values, mask):
    if isinstance(mask, list):
        return [_hidden(*pair) for pair in zip(values, mask, strict=True)]
    return values if mask else None


def at(model):
    """A model with one result."""
    return lambda x: {"at": model(x)}


def best(x, count=3, axis=-1):
    return x.topk(count, axis).indices


# The model, its numbers, the port's result, and the choices that it shows.
READ = {
    "the choice": (lambda x: x.argmax(-1), SCORES, [1, 3, 0], [1, 3, 0]),
    "with its numbers": (lambda x: x.max(-1).indices, SCORES, [1, 3, 0], [1, 3, 0]),
    "a part": (lambda x: x.argmax(-1)[1:], SCORES, [2, 3], [None, 2, 3]),
    "beside constants": (lambda x: torch.cat([SEVEN, x.argmax(-1)]), SCORES, [9, 3, 0, 2], [3, 0, 2]),
    "no item": (lambda x: x.argmax(-1), SCORES, [4, -1, 0], [None, None, 0]),
    "of the whole tensor": (lambda x: x.argmax(), RANKED, 7, 7),
    "no item of the whole tensor": (lambda x: x.argmax(), RANKED, 8, None),
    "ranks": (best, RANKED, [[1, 0, 3], [0, 1, 2]], [[1, 0, 3], [0, 1, 2]]),
    "a rank twice": (best, RANKED, [[1, 1, 0], [3, 0, 2]], [NONE, [3, 0, 2]]),
    "a rank beyond the items": (best, RANKED, [[0, 1, 4], [0, 1, 3]], [NONE, [0, 1, 3]]),
    "a negative rank": (best, RANKED, [[-1, 0, 1], [2, 0, 1]], [NONE, [2, 0, 1]]),
    # The others follow in the oracle's order.
    "the first rank": (lambda x: best(x)[:, :1], RANKED, [[3], [0]], [[3, 0, 1], [0, 3, 2]]),
    "two of three ranks": (lambda x: best(x)[:, :2], RANKED, [[2, 1], [3, 1]], [[2, 1, 0], [3, 1, 2]]),
    "the last rank": (lambda x: best(x)[:, 2:], RANKED, [[0], [3]], [[1, 2, 0], [2, 1, 3]]),
    "ranks of one row": (lambda x: best(x)[:1], RANKED, [[1, 0, 2]], [[1, 0, 2], NONE]),
    "ranks of a vector": (lambda x: best(x)[:2], RANKED[0], [2, 1], [2, 1, 0]),
    "along the first axis": (
        lambda x: x.sort(0).indices[:1],
        RANKED.T,
        [[1, 3]],
        [[1, 3], [3, 0], [2, 1], [0, 2]],
    ),
    "of three axes": (lambda x: x.sort(0).indices[:1], DEEP, [[[2, 0]]], [[[2, 0]], [[0, 2]], [[1, 1]]]),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_result_that_moves_a_choice_holds_it(name, dtype):
    model, numbers, port, expected = READ[name]
    assert proposed(at(model), numbers, {"at": port}, dtype) == ({0: expected}, {0: "at"})


def steps(x):
    """Rounded numbers 0, 2, 4 and 1, of the first row."""
    return torch.round(4 * x[0])


# As above. The result does not hold the choice: every value that gives it is possible.
FOUND = {
    "an id": (lambda x: IDS[x.argmax(-1)], [71, 73, 70], [1, 3, 0]),
    "no id of the table": (lambda x: IDS[x.argmax(-1)], [71, 99, 70], [1, None, 0]),
    # Scores 0.5 and 0.2 are the nearest to 0.9 and to 0.8; 0.6 and 0.95 lie near the oracle's own choice.
    "the nearest score": (lambda x: SHARED[x.argmax(-1)], [7, 9, 7], [1, 2, 1]),
    "the oracle's own": (lambda x: SHARED[x.argmax(-1)], [9, 7, 9], [2, 0, 2]),
    "the nearest of the whole tensor": (lambda x: SHARED.repeat(3)[x.argmax()[None]], [9], 2),
    "a comparison": (lambda x: torch.where(x[:, 0] > 0.15, 10, 20), [10, 20, 30], [True, False, None]),
    "two steps up or down": (lambda x: steps(x) * 10, [-20, 0, 60, 30], [-2, 0, 6, 3]),
    "one step": (lambda x: steps(x) * 10, [10, 30, 30, 0], [1, 3, 3, 0]),
    "three steps": (lambda x: steps(x) * 10, [10, 50, 10, -20], [1, None, None, None]),
    "the nearest step": (lambda x: steps(x) // 2, [1, 0, 1, 1], [2, 1, 3, 2]),
    "a bucket": (lambda x: torch.bucketize(x[0], EDGES) * 10, [30, 0, 20, 40], [3, 0, 2, None]),
    "a bucket of its row": (
        lambda x: torch.searchsorted(EDGES.repeat(2, 1), x[:2, :2].contiguous()) * 10,
        [[30, 20], [0, 40]],
        [[3, 2], [0, None]],
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_result_of_a_choice_shows_the_values_that_give_it(name):
    model, port, expected = FOUND[name]
    assert proposed(at(model), SCORES, {"at": port}) == ({0: expected}, {0: "at"})


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_the_nearest_score_along_every_axis(axis):
    turned = axis in (0, -2)
    ids, expected = torch.tensor([[7, 9], [9, 7], [7, 7]]), torch.tensor([[1, 2], [2, 1], [1, 3]])
    port, items = (side.T.tolist() if turned else side.tolist() for side in (ids, expected))
    numbers = SCORES.T if turned else SCORES
    shown, _ = proposed(at(lambda x: SHARED[best(x, 2, axis)]), numbers, {"at": port})
    assert shown == {0: items}
    shown, _ = proposed(at(lambda x: SHARED[x.argmax(axis)]), numbers, {"at": [7, 9, 7]})
    assert shown == {0: [1, 2, 1]}


def both(x):
    """The best items, and whether the first score exceeds 0.15: no, yes, yes."""
    return torch.cat([x.argmax(-1), (x[:, 0] > 0.15).long()])


def test_results_of_several_choices():
    x = SCORES
    shown, taps = proposed(at(both), x, {"at": [1, 3, 0, 1, 0, 1]})
    assert shown == {0: [1, 3, 0], 1: [True, False, True]}
    assert taps == {0: "at", 1: "at"}
    # Numbers of possible values differ: four items, and yes or no.
    shown, taps = proposed(at(lambda x: 10 * both(x)), x, {"at": [30, 10, 0, 10, 0, 20]})
    assert shown == {0: [3, 1, 0], 1: [True, False, None]}
    assert taps == {0: "at", 1: "at"}
    # Neither has more items than its own: a table of two has no third id.
    few = torch.tensor([5, 6])
    shown, _ = proposed(
        at(lambda x: torch.cat([IDS[x.argmax(-1)], few[x[:, :2].argmax(-1)]])),
        x,
        {"at": [73, 71, 70, 5, 6, 5]},
    )
    assert shown == {0: [3, 1, 0], 1: [0, 1, 0]}
    # An element that two choices give shows neither.
    pairs = torch.arange(16).reshape(4, 4)
    shown, taps = proposed(at(lambda x: pairs[x.argmax(-1), x.argmin(-1)]), x, {"at": [1, 2, 3]})
    assert (shown, taps) == ({}, {0: "at", 1: "at"})


def nibbles(x):
    """Codes 1, 3 and 2 beside 0, in bytes: 49 and 2."""
    codes = F.pad(torch.round(4 * x).clamp(0, 15), (0, 1))
    return (codes[0::2] + 16 * codes[1::2]).to(torch.uint8)


def uneven(x):
    """Codes 1 and 3, and 0, 1 and 2, in integers: 49 and 528."""
    codes = torch.round(4 * x)
    return torch.stack([codes[0] + 16 * codes[1], codes[2] + 16 * codes[3] + 256 * codes[4]]).to(torch.int64)


def bits(x):
    """Three comparisons, of which the first two hold, in bits: 3."""
    above = (x > 0.5).to(torch.int64)
    return (above[0] | (above[1] << 1) | (above[2] << 2)).reshape(1)


def shared_item(x):
    """A rounded number beside the best item."""
    return torch.round(4 * x[0]) + 10 * x[:3].argmax()


# As above. An integer holds several choices, and shows them. The second byte is of one code.
PACKED = {
    "the oracle's bytes": (nibbles, [0.3, 0.7, 0.55], [49, 2], {0: [1, 3, 2]}),
    "the lower code": (nibbles, [0.3, 0.7, 0.55], [50, 2], {0: [2, 3, 2]}),
    "the upper code": (nibbles, [0.3, 0.7, 0.55], [33, 2], {0: [1, 2, 2]}),
    "both codes": (nibbles, [0.3, 0.7, 0.55], [66, 2], {0: [2, 4, 2]}),
    "both bytes": (nibbles, [0.3, 0.7, 0.55], [34, 3], {0: [2, 2, 3]}),
    # Codes of 16 and 17 are clamped to the same 15.
    "a clamped code": (nibbles, [3.6, 0.7, 0.5], [63, 2], {0: [15, 3, 2]}),
    "a code too far": (nibbles, [0.3, 0.7, 0.55], [53, 2], {0: [None, None, 2]}),
    "a bit of padding": (nibbles, [0.3, 0.7, 0.55], [49, 18], {0: [1, 3, None]}),
    "one bit": (bits, [0.6, 0.7, 0.1], [7], {0: [True, True, True]}),
    "two bits": (bits, [0.6, 0.7, 0.1], [4], {0: [False, False, True]}),
    "no bits": (bits, [0.6, 0.7, 0.1], [8], {}),
    # 1 + 2 is one step from 1 + 1 on either side.
    "bytes of two codes and of three": (uneven, [0.3, 0.7, 0.1, 0.2, 0.6], [50, 529], {0: [2, 3, 1, 1, 2]}),
    "a sum": (lambda x: torch.round(4 * x[:1]) + torch.round(4 * x[1:2]), [0.3, 0.2], [3], {}),
    "an item": (lambda x: shared_item(x).reshape(1), [0.3, 0.7, 0.55], [21], {}),
}


@pytest.mark.parametrize("name", PACKED)
def test_an_integer_of_several_choices_shows_those_that_give_it(name):
    model, numbers, port, expected = PACKED[name]
    assert proposed(at(model), wide(numbers), {"at": port})[0] == expected


@pytest.mark.parametrize(("odd", "port", "last"), [(0, [50, 2], 2), (1, [50, 3], 3), (0, [50, 3], 2)])
def test_of_results_that_share_a_choice_beside_packed_ones_the_first_shows_it(odd, port, last):
    """The last code alone is in a byte, and whether it is odd in a result before."""

    def model(x):
        codes = F.pad(torch.round(4 * x).clamp(0, 15), (0, 1))
        return {"odd": codes[2:3] % 2, "at": (codes[0::2] + 16 * codes[1::2]).to(torch.uint8)}

    shown, _ = proposed(model, wide([0.3, 0.7, 0.55]), {"odd": [odd], "at": port})
    assert shown == {0: [2, 3, last]}


def test_more_choices_than_a_byte_has_bits_are_not_searched():
    def summed(count):
        return at(
            lambda x: sum(((x[place] > 0.5).to(torch.int64) << place) for place in range(count)).reshape(1)
        )

    numbers = wide([0.6] * 9)
    assert proposed(summed(8), numbers, {"at": [254]})[0] == {0: False} | dict.fromkeys(range(1, 8), True)
    assert proposed(summed(9), numbers, {"at": [510]})[0] == {}


def test_unpacking_puts_a_bounded_number_of_values_through_code(monkeypatch):
    # 5 * 5 values of two bytes and three codes.
    for most, expected in ((25 * (2 + 3), {0: [2, 3, 2]}), (25 * (2 + 3) - 1, {0: [None, None, 2]})):
        monkeypatch.setattr(packed, "MOST_VALUES", most)
        assert proposed(at(nibbles), wide([0.3, 0.7, 0.55]), {"at": [50, 2]})[0] == expected


def test_results_that_share_a_choice():
    def halves(x):
        item = x.argmax(-1)
        return {"odd": item % 2, "half": item // 2}

    shown, taps = proposed(halves, SCORES, {"odd": [1, 0, 0], "half": [1, 1, 7]})
    # No item has the last half: the result before it shows an even one, the nearest in its score.
    assert (shown, taps) == ({0: [3, 2, 2]}, {0: "odd"})
    shown, _ = proposed(halves, SCORES, {"odd": [1, 0, 5], "half": [1, 1, 0]})
    assert shown == {0: [3, 2, 1]}

    def named(x):
        item = x.argmax(-1)
        return {"id": IDS[item], "first": item[:1]}

    # A result that holds the choice is nearer to it than its id.
    shown, taps = proposed(named, SCORES, {"id": [71, 72, 73], "first": [3]})
    assert (shown, taps) == ({0: [3, 2, 3]}, {0: "id"})

    def again(x):
        item = x.argmax(-1)
        return {"module": item[1:], "output": item}

    # A wrong output does not hide what a module chose.
    shown, taps = proposed(again, SCORES, {"module": [2, 0], "output": [1, 3, 3]})
    assert (shown, taps) == ({0: [1, 2, 0]}, {0: "module"})


def test_a_result_without_a_choice_shows_none():
    model = at(lambda x: x.argmax(-1))
    assert proposed(model, SCORES, {"at": [1]}) == ({}, {})
    assert proposed(model, SCORES, {}) == ({}, {})
    assert proposed(at(lambda x: x.mean()), SCORES, {"at": 1}) == ({}, {})

    def two(x):
        return {"other": x.argmin(-1), "at": x.argmax(-1)}

    assert proposed(two, SCORES, {"at": [1, 3, 0]}) == ({1: [1, 3, 0]}, {1: "at"})


def test_a_search_puts_a_bounded_number_of_values_through_code(monkeypatch):
    """All possible values of the choices times the elements of choices and result."""

    def model(x):
        return {"id": IDS[x.argmax(-1)], "flag": torch.where(x[:2, 0] > 0.15, 10, 20)}

    ids, flags = {0: [1, 3, 0]}, {1: [True, False]}
    # 4 items times 3 + 3 elements, and 2 results of a comparison times 2 + 2.
    for most, expected in ((24, ids | flags), (23, flags), (8, flags), (7, {})):
        monkeypatch.setattr(proposals, "MOST_VALUES", most)
        shown, taps = proposed(model, SCORES, {"id": [71, 73, 70], "flag": [10, 20]})
        assert (shown, taps) == (expected, {0: "id", 1: "flag"})
    # Two choices of three elements, each with the six of the result.
    for most, numbers in ((4 * 18, {0, 1}), (4 * 18 - 1, set())):
        monkeypatch.setattr(proposals, "MOST_VALUES", most)
        shown, _ = proposed(at(lambda x: 10 * both(x)), SCORES, {"at": [30, 10, 0, 10, 0, 10]})
        assert shown.keys() == numbers
