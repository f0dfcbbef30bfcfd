"""An earlier tensor of the run in the place of another one: a term, a factor, or the result of a shift."""

import pytest
import torch
import torch.nn.functional as F

from parity.verdict.causes.operations import Operation
from parity.verdict.causes.other_tensors import MOST_EARLIER, EarlierTensors, tensor_at
from tests.parity.verdict.planted import told_alone, told_of

aten = torch.ops.aten
B, N, D, STEPS = 3, 6, 8, 4
RNG = torch.Generator().manual_seed(6)
X = torch.randn(B, N, D, generator=RNG, dtype=torch.float64)
WEIGHT = torch.randn(D, D, generator=RNG, dtype=torch.float64)
TABLE = X.exp()
FILE = "test_other_tensors.py"


def line(function, below):
    return f"{FILE}:{function.__code__.co_firstlineno + below}"


def block(x, residual="x"):
    """A residual around a layer behind a norm. A port may take the norm's result."""
    h = F.layer_norm(x, (D,))
    y = torch.tanh(h @ WEIGHT)
    return y + {"x": x, "h": h}[residual]


def behind(x, residual="h"):
    h = F.layer_norm(x, (D,))
    y = torch.tanh(h @ WEIGHT)
    return y * {"x": x, "h": h}[residual]


def transmitted(x, shift=True):
    """The light that remains before each sample of a ray."""
    open_ = torch.sigmoid(x)
    before = torch.cat([torch.ones_like(open_[:, :1]), open_[:, :-1]], 1) if shift else open_
    return torch.cumprod(before, 1)


def padded(x, shift=True):
    wide = torch.tanh(x)
    before = F.pad(wide[:, :-1], (0, 0, 1, 0)) if shift else wide
    return before @ WEIGHT


def looped(x, residual="state"):
    """In each step, the state itself or its norm is carried on."""
    state = x
    for _ in range(STEPS):
        h = F.layer_norm(state, (D,))
        state = torch.sin(h @ WEIGHT) + {"state": state, "h": h}[residual]
    return state


# The reference, the port, and the words of the cause.
PLANTED = {
    "residual behind a norm": (
        block,
        lambda x: block(x, "h"),
        f"with the result of layer_norm in {line(block, 2)} in place of the second term in add",
    ),
    "factor before a norm": (
        behind,
        lambda x: behind(x, "x"),
        f"with the input of layer_norm in {line(behind, 1)} in place of the second factor in mul",
    ),
    "no shift by a concatenation": (
        transmitted,
        lambda x: transmitted(x, shift=False),
        f"with the result of sigmoid in {line(transmitted, 2)} in place of the result of cat",
    ),
    "no shift by padding": (
        padded,
        lambda x: padded(x, shift=False),
        f"with the result of tanh in {line(padded, 1)} in place of the result of constant_pad_nd",
    ),
    "a term in each step": (
        looped,
        lambda x: looped(x, "h"),
        f"with the result of layer_norm in {line(looped, 4)} in place of the second term in add, "
        f"all {STEPS} times in {line(looped, 5)}",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_another_tensor_is_told_and_another_error_of_the_same_size_is_not(name):
    reference, port, words = PLANTED[name]
    assert told_alone(reference, port, X) == f"fits the reference {words}"


def test_only_tensors_of_the_run_before_the_operation_are_tried():
    def reference(x):
        return (x + torch.tanh(x)) * torch.sin(3 * x)

    assert told_of(reference, lambda x: (x + torch.sin(3 * x)) * torch.sin(3 * x), X) == ""


@pytest.mark.parametrize(("between", "is_told"), [(MOST_EARLIER - 1, True), (MOST_EARLIER, False)])
def test_the_last_earlier_tensors_are_tried(between, is_told):
    """The result of the cosine, and those between it and the sum."""

    def reference(x, own=True):
        other = x.abs()
        first = last = torch.cos(x)
        for _ in range(between):
            last = torch.sin(last)
        return other + (last if own else first)

    text = told_of(reference, lambda x: reference(x, own=False), X)
    assert ("with the result of cos" in text) is is_told


def test_a_tensor_that_is_written_later_has_the_numbers_that_it_has_there():
    def reference(x, own=True):
        h = torch.tanh(x)
        y = torch.sin(3 * x)
        result = y + (x if own else h)
        h.zero_()
        return result * 2 + h

    before = X.clone()
    text = told_of(reference, lambda x: reference(x, own=False), X)
    assert text.startswith("fits the reference with the result of tanh in ")
    # Nor does a change make an argument of a result that the code writes to.
    assert torch.equal(X, before)


def behind_operations(operation, *earlier):
    """The words and sources of an operation's changes behind others, which have a line each."""
    seen = EarlierTensors()
    for number, other in enumerate(earlier):
        seen.add(number, other, other.run(), f"line {number}")
    changes = list(seen.changes_of(operation, operation.run()))
    return {change.text: change.source for change in changes}


def of(function, *args):
    return Operation(function, args, {})


ONE, OTHER = X.cos(), X.sin()
TANH = of(aten.tanh.default, X)


@pytest.mark.parametrize(
    ("function", "kind"), [(aten.add.Tensor, "term"), (aten.sub.Tensor, "term"), (aten.mul.Tensor, "factor")]
)
def test_each_operand_may_be_an_argument_or_a_result_of_an_earlier_operation(function, kind):
    words = of(function, ONE, OTHER).words
    assert behind_operations(of(function, ONE, OTHER), TANH) == {
        f"with the {what} of tanh in line 0 in place of the {place} {kind} in {words}": (0, source)
        for place in ("first", "second")
        for what, source in (("self", "self"), ("result", 0))
    }
    assert behind_operations(of(function, ONE, 2.0), TANH) == {}
    assert behind_operations(of(function, ONE, OTHER.sum()), TANH) == {}
    # Its own operands are no other ones, also in tensors of their own.
    assert behind_operations(of(function, ONE, OTHER), of(aten.neg.default, ONE.clone())).keys() == {
        f"with the result of neg in line 0 in place of the {place} {kind} in {words}"
        for place in ("first", "second")
    }


def test_the_result_of_a_join_may_be_an_earlier_tensor_and_that_of_others_may_not():
    shift = of(aten.cat.default, [X[:, :1], X[:, :-1]], 1)
    assert behind_operations(shift, TANH) == {
        "with the self of tanh in line 0 in place of the result of cat": (0, "self"),
        "with the result of tanh in line 0 in place of the result of cat": (0, 0),
    }
    assert behind_operations(of(aten.sin.default, X), TANH) == {}


def test_all_parts_of_a_split_and_the_first_result_of_others_are_earlier_tensors():
    half = of(aten.add.Tensor, X[..., :4], X[..., 4:].cos())
    parts = of(aten.split.Tensor, TABLE, 4, -1)
    assert behind_operations(half, parts).keys() == {
        f"with part {part} of split in line 0 in place of the {place} term in add"
        for part in (0, 1)
        for place in ("first", "second")
    }
    # What a norm knows about its result is none.
    norm = of(aten.native_layer_norm.default, TABLE, [D], None, None, 1e-5)
    mean = norm.run()[1]
    assert behind_operations(of(aten.add.Tensor, mean + 1, mean + 2), norm) == {}


def test_integers_and_numbers_without_axes_are_no_earlier_tensors():
    ids = torch.arange(6)
    assert behind_operations(of(aten.add.Tensor, ids, ids + 1), of(aten.neg.default, ids)) == {}
    seen = EarlierTensors()
    number = X.sum()
    seen.add(0, of(aten.neg.default, number), -number, "line 0")
    shift = of(aten.constant_pad_nd.default, number, [])
    assert list(seen.changes_of(shift, number + 1)) == []


def test_the_last_tensors_of_a_shape_are_earlier_ones():
    numbers = [of(aten.mul.Tensor, X, float(factor)) for factor in range(2, 2 + MOST_EARLIER)]
    shift = of(aten.cat.default, [X[:, :1], X[:, :-1]], 1)
    found = behind_operations(shift, *numbers)
    assert list(found.values()) == [(number, 0) for number in range(MOST_EARLIER)]


def test_the_tensor_at_a_source_is_the_argument_or_the_result():
    parts = of(aten.split.Tensor, X, 4, -1)
    assert torch.equal(tensor_at((0, "self"), parts, parts.run()), X)
    assert torch.equal(tensor_at((0, 1), parts, parts.run()), X[..., 4:])
    assert torch.equal(tensor_at((0, 0), TANH, X.tanh()), X.tanh())
