"""Right numbers at wrong places, or with the other sign: the tried changes, and the causes that name them."""

import pytest
import torch
import torch.nn.functional as F

from parity.verdict.causes.operations import Operation
from parity.verdict.causes.signs_and_places import signs_and_places_of
from tests.parity.verdict.planted import told, with_noise

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


def cause(reference, port):
    return told(lambda x: reference(x), lambda x: port(x), {"x": X})


@pytest.mark.parametrize("name", PLANTED)
def test_a_wrong_sign_or_place_is_told(name):
    reference, port, words = PLANTED[name]
    assert cause(reference, port) == f"fits the reference {words}"


@pytest.mark.parametrize("name", PLANTED)
def test_another_error_of_the_same_size_is_not(name):
    reference, port, _ = PLANTED[name]
    assert cause(reference, with_noise(reference, port, X)) == ""


def test_one_lstm_step_has_one_split():
    def reference(x, order=(0, 1, 2, 3)):
        parts = torch.ops.aten.unsafe_split.Tensor(x, 2, -1)
        i, f, g, o = (parts[place] for place in order)
        return i.sigmoid() * g.tanh() + f.sigmoid() * o.sigmoid()

    text = cause(reference, lambda x: reference(x, (0, 1, 3, 2)))
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
