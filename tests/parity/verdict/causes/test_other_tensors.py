"""An earlier tensor of the run in the place of another one: a term, a factor, or the result of a shift."""

import pytest
import torch
import torch.nn.functional as F

from parity.verdict.causes.other_tensors import MOST_EARLIER
from tests.parity.verdict.planted import told, with_noise

B, N, D, STEPS = 3, 6, 8, 4
RNG = torch.Generator().manual_seed(6)
X = torch.randn(B, N, D, generator=RNG, dtype=torch.float64)
WEIGHT = torch.randn(D, D, generator=RNG, dtype=torch.float64)
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


def cause(reference, port):
    return told(lambda x: reference(x), lambda x: port(x), {"x": X})


@pytest.mark.parametrize("name", PLANTED)
def test_another_tensor_is_told(name):
    reference, port, words = PLANTED[name]
    assert cause(reference, port) == f"fits the reference {words}"


@pytest.mark.parametrize("name", PLANTED)
def test_another_error_of_the_same_size_is_not(name):
    reference, port, _ = PLANTED[name]
    assert cause(reference, with_noise(reference, port, X)) == ""


def test_only_tensors_of_the_run_before_the_operation_are_tried():
    def reference(x):
        return (x + torch.tanh(x)) * torch.sin(3 * x)

    assert cause(reference, lambda x: (x + torch.sin(3 * x)) * torch.sin(3 * x)) == ""


@pytest.mark.parametrize(("between", "is_told"), [(MOST_EARLIER - 1, True), (MOST_EARLIER, False)])
def test_the_last_earlier_tensors_are_tried(between, is_told):
    """The result of the cosine, and those between it and the sum."""

    def reference(x, own=True):
        other = x.abs()
        first = last = torch.cos(x)
        for _ in range(between):
            last = torch.sin(last)
        return other + (last if own else first)

    text = cause(reference, lambda x: reference(x, own=False))
    assert ("with the result of cos" in text) is is_told


def test_a_tensor_that_is_written_later_has_the_numbers_that_it_has_there():
    def reference(x, own=True):
        h = torch.tanh(x)
        y = torch.sin(3 * x)
        result = y + (x if own else h)
        h.zero_()
        return result * 2 + h

    before = X.clone()
    text = cause(reference, lambda x: reference(x, own=False))
    assert text.startswith("fits the reference with the result of tanh in ")
    # Nor does a change make an argument of a result that the code writes to.
    assert torch.equal(X, before)
