"""Right numbers at wrong places, or with the other sign: the tried changes, and the causes that name them."""

import pytest
import torch
import torch.nn.functional as F

from parity.verdict.causes.operations import Operation
from parity.verdict.causes.signs_and_places import signs_and_places_of
from tests.parity.verdict.planted import told_alone, told_of

aten = torch.ops.aten
B, N, D = 3, 6, 8
RNG = torch.Generator().manual_seed(4)
X = torch.randn(B, N, D, generator=RNG, dtype=torch.float64)
TABLE = torch.randn(20, D, generator=RNG, dtype=torch.float64)
IDS = torch.tensor([[7, 3, 3, 0, 19, 1], [2, 2, 5, 9, 4, 4], [1, 0, 8, 6, 6, 11]])
ORDER = IDS % N
SLOPES = torch.rand(N, generator=RNG, dtype=torch.float64)
RECURRENT = {name: getattr(torch.nn, name)(D, D, batch_first=True).double() for name in ("LSTM", "GRU")}


def tried(function, *args, **kwargs):
    """The results of an operation's changes, by their words."""
    operation = Operation(function, args, kwargs)
    return {change.text: change.result(operation) for change in signs_and_places_of(operation)}


def recurrent(name, order=None):
    """The results of a recurrent module with its gates in another order."""
    module = getattr(torch.nn, name)(D, D, batch_first=True).double()
    module.load_state_dict(RECURRENT[name].state_dict())
    for parameter in module.parameters() if order else ():
        parts = parameter.data.chunk(len(order), 0)
        parameter.data = torch.cat([parts[place] for place in order])
    return lambda x: module(x)[0].detach()


def transmitted(x, before=False):
    """The light that remains behind each sample of a ray, or before it."""
    kept = torch.cumprod(torch.sigmoid(x), 1)
    return torch.cat([torch.ones_like(kept[:, :1]), kept[:, :-1]], 1) if before else kept


def shifted(x, places):
    return torch.tanh(x[:, places]) @ TABLE[:D]


ROWS = "in place of the rows that {} looks up".format
# The reference, the port, and the words of the cause.
PLANTED = {
    "slope": (
        lambda x: F.leaky_relu(x, 0.1) * TABLE[0],
        lambda x: F.leaky_relu(x, -0.1) * TABLE[0],
        "with the other sign of 0.1 in leaky_relu",
    ),
    "slopes": (
        lambda x: F.prelu(x, SLOPES),
        lambda x: F.prelu(x, -SLOPES),
        "with the other sign of the slopes in prelu_kernel",
    ),
    "slope by hand": (
        lambda x: torch.where(x > 0, x, 0.2 * x),
        lambda x: torch.where(x > 0, x, -0.2 * x),
        "with the other sign of 0.2 in mul",
    ),
    "factor": (
        lambda x: torch.exp(-0.5 * x),
        lambda x: torch.exp(0.5 * x),
        "with the other sign of -0.5 in mul",
    ),
    "exclusive product": (
        transmitted,
        lambda x: transmitted(x, before=True),
        "with an exclusive running product in place of an inclusive one",
    ),
    "exclusive sum": (
        lambda x: x.cumsum(1),
        lambda x: x.cumsum(1).roll(1, 1) * (torch.arange(N) > 0)[:, None],
        "with an exclusive running sum in place of an inclusive one",
    ),
    "slice before": (
        lambda x: shifted(x, slice(1, None)),
        lambda x: shifted(x, slice(None, -1)),
        f"with elements 0:{N - 1} in place of 1:{N} of axis 1",
    ),
    "slice behind": (
        lambda x: shifted(x, slice(0, 3)),
        lambda x: shifted(x, slice(1, 4)),
        "with elements 1:4 in place of 0:3 of axis 1",
    ),
    "first row": (
        lambda x: x + F.embedding(IDS, TABLE),
        lambda x: x + TABLE[0],
        f"with row 0 {ROWS('embedding')}",
    ),
    "mean of the rows": (
        lambda x: x + F.embedding(IDS, TABLE),
        lambda x: x + TABLE.mean(0),
        f"with the mean of all rows {ROWS('embedding')}",
    ),
    "rows in their order": (
        lambda x: torch.gather(x, 1, ORDER[:, :4, None].expand(-1, -1, D)),
        lambda x: x[:, :4],
        f"with rows in their order {ROWS('gather')}",
    ),
    "first place": (
        lambda x: x[torch.arange(B), ORDER[:, 0]],
        lambda x: x[:, 0],
        f"with row 0 {ROWS('index')}",
    ),
    "mean of the places": (
        lambda x: x.index_select(1, ORDER[0]),
        lambda x: x.mean(1, keepdim=True).expand(-1, N, -1),
        f"with the mean of all rows {ROWS('index_select')}",
    ),
    "parts in turn": (
        lambda x: sum(torch.sin((place + 1) * part) for place, part in enumerate(x.split(2, -1))),
        lambda x: sum(
            torch.sin((place + 1) * x.split(2, -1)[part]) for place, part in enumerate((0, 2, 3, 1))
        ),
        "with parts in the order 0, 2, 3, 1 in split",
    ),
    "gates of an LSTM": (
        recurrent("LSTM"),
        recurrent("LSTM", (0, 3, 1, 2)),
        f"with {N} splits of gates with parts in the order 0, 3, 1, 2",
    ),
    "two gates of an LSTM": (
        recurrent("LSTM"),
        recurrent("LSTM", (0, 2, 1, 3)),
        f"with {N} splits of gates with parts in the order 0, 2, 1, 3",
    ),
    "gates of a GRU": (
        recurrent("GRU"),
        recurrent("GRU", (1, 0, 2)),
        f"with {2 * N} splits of gates with parts in the order 1, 0, 2",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_wrong_sign_or_place_is_told_and_another_error_of_the_same_size_is_not(name):
    reference, port, words = PLANTED[name]
    assert told_alone(reference, port, X) == f"fits the reference {words}"


def test_one_lstm_step_has_one_split():
    def reference(x, order=(0, 1, 2, 3)):
        parts = torch.ops.aten.unsafe_split.Tensor(x, 2, -1)
        i, f, g, o = (parts[place] for place in order)
        return i.sigmoid() * g.tanh() + f.sigmoid() * o.sigmoid()

    text = told_of(reference, lambda x: reference(x, (0, 1, 3, 2)), X)
    assert text == "fits the reference with parts in the order 0, 1, 3, 2 in unsafe_split"


def test_a_running_value_of_one_number_has_none_before_it():
    assert tried(aten.cumprod.default, X[0, 0, 0], 0)[PLANTED["exclusive product"][2]].tolist() == 1.0
    assert tried(aten.cumsum.default, X[0, 0, 0], 0)[PLANTED["exclusive sum"][2]].tolist() == 0.0


@pytest.mark.parametrize(
    ("function", "args"),
    [
        # The whole axis, no element, and steps have no neighbours.
        (aten.slice.Tensor, (X, 1, 0, N)),
        (aten.slice.Tensor, (X, 1, 2, 2)),
        (aten.slice.Tensor, (X, 1, 1, 5, 2)),
        # A mask looks up nothing, and a table of one row has no other one.
        (aten.index.Tensor, (X, [X[..., 0] > 0])),
        (aten.embedding.default, (TABLE[:1], IDS * 0)),
        (aten.embedding.default, (TABLE, IDS[:0])),
        # Two parts are exchanged, and parts of other sizes or many have no order.
        (aten.split.Tensor, (X, 4, -1)),
        (aten.split.Tensor, (X, 3, -1)),
        (aten.split.Tensor, (X, 1, -1)),
        # A factor with axes, and one of 0, have no sign.
        (aten.mul.Tensor, (X, X)),
        (aten.mul.Tensor, (X, 0.0)),
        (aten.add.Tensor, (X, 2.0)),
    ],
)
def test_nothing_is_tried(function, args):
    assert tried(function, *args) == {}


def test_integers_have_no_mean_and_indices_beyond_the_table_no_order():
    index = torch.zeros(1, 30, dtype=torch.int64)
    assert list(tried(aten.gather.default, IDS, 0, ORDER)) == [
        f"with {rows} {ROWS('gather')}" for rows in ("row 0", "rows in their order")
    ]
    words = [f"with {rows} {ROWS('embedding')}" for rows in ("row 0", "the mean of all rows")]
    assert list(tried(aten.embedding.default, TABLE, index)) == words
    in_order = torch.arange(4).expand(2, 4)
    assert list(tried(aten.embedding.default, TABLE, in_order)) == words


def test_a_factor_without_axes_has_a_sign():
    text = "with the other sign of 0.25 in div"
    for value in (0.25, torch.tensor(0.25, dtype=torch.float64)):
        assert torch.equal(tried(aten.div.Tensor, X, value)[text], X / -0.25)


def test_slices_move_one_place_as_far_as_the_axis_goes():
    def starts(start, end):
        return [text.split()[2] for text in tried(aten.slice.Tensor, X, 1, start, end)]

    assert starts(1, 4) == ["2:5", "0:3"]
    assert starts(0, N - 1) == [f"1:{N}"]
    assert starts(1, N) == [f"0:{N - 1}"]
    moved = tried(aten.slice.Tensor, X, 1, 1, 4)
    assert torch.equal(moved["with elements 2:5 in place of 1:4 of axis 1"], X[:, 2:5])
    assert torch.equal(moved["with elements 0:3 in place of 1:4 of axis 1"], X[:, 0:3])


def orders(function, *args):
    """The orders of parts, and their words for several operations."""
    changes = signs_and_places_of(Operation(function, args, {}))
    return {change.text.split(" in the order ")[1].split(" in ")[0]: change.together for change in changes}


def test_parts_change_places_in_turn_and_gates_also_in_pairs():
    assert orders(aten.split.Tensor, X[..., :6], 2, -1) == {"1, 2, 0": "", "2, 0, 1": ""}
    of_gates = orders(aten.unsafe_split.Tensor, X[..., :6], 2, -1)
    assert set(of_gates) == {"0, 2, 1", "1, 0, 2", "1, 2, 0", "2, 0, 1", "2, 1, 0"}
    assert all(words == f"splits of gates with parts in the order {own}" for own, words in of_gates.items())
    assert orders(aten.unsafe_split.Tensor, X, 4, -1) == {}
    # Of four parts, 8 orders move three, 6 move two, and 9 move all.
    assert len(orders(aten.split.Tensor, X, 2, -1)) == 8
    assert len(orders(aten.unsafe_split.Tensor, X, 2, -1)) == 14


def test_an_order_of_gates_is_one_of_all_their_splits():
    changes = signs_and_places_of(Operation(aten.unsafe_split.Tensor, (X, 2, -1), {}))
    assert {change.takes_few for change in changes} == {False}


def test_a_table_of_two_rows_has_another_one():
    index = torch.tensor([1, 1, 0])
    assert list(tried(aten.embedding.default, TABLE[:2], index)) == [
        f"with {rows} {ROWS('embedding')}" for rows in ("row 0", "the mean of all rows")
    ]


def test_a_table_of_one_axis_has_it_from_both_ends():
    values, index = X[0, :, 0], torch.tensor([3, 1])
    for axis in (0, -1):
        changed = tried(aten.index_select.default, values, axis, index)
        assert torch.equal(changed[f"with rows in their order {ROWS('index_select')}"], values[:2])
        mean = changed[f"with the mean of all rows {ROWS('index_select')}"]
        assert torch.allclose(mean, values.mean().expand(2))


def test_each_tensor_of_several_indices_is_left_out():
    first, second, third = torch.tensor([2, 1]), torch.tensor([4, 0]), torch.tensor([3, 5])
    changes = [
        change.result(Operation(aten.index.Tensor, (X, [first, second, third]), {}))
        for change in signs_and_places_of(Operation(aten.index.Tensor, (X, [first, second, third]), {}))
        if change.text.startswith("with row 0")
    ]
    zeros = torch.zeros_like(first)
    expected = [X[zeros, second, third], X[first, zeros, third], X[first, second, zeros]]
    assert len(changes) == 3
    assert all(torch.equal(own, other) for own, other in zip(changes, expected, strict=True))
    # An axis of one row ends no search along the others.
    texts = tried(aten.index.Tensor, X[:1], [first * 0, second])
    assert torch.equal(texts[f"with row 0 {ROWS('index')}"], X[:1][zeros, zeros])


def test_the_mean_is_that_of_the_looked_up_axis():
    changed = tried(aten.gather.default, X, 1, ORDER[:, :4, None].expand(-1, -1, D))
    mean = changed[f"with the mean of all rows {ROWS('gather')}"]
    assert torch.allclose(mean, X.mean(1, keepdim=True).expand(-1, 4, -1))


def test_indices_in_their_order_of_any_integer_type_stay():
    for dtype in (torch.int32, torch.int64):
        in_order = torch.arange(4, dtype=dtype).expand(2, 4)
        assert f"with rows in their order {ROWS('embedding')}" not in tried(
            aten.embedding.default, TABLE, in_order
        )
