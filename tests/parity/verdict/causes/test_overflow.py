"""The first operation of the reference whose numbers a type cannot hold."""

import numpy as np
import pytest
import torch

from parity.verdict.causes import Program, overflow
from parity.verdict.distances import Distance
from parity.verdict.patterns import FailedTensor

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
X[1, 2] = 3.0
LINE = "in test_overflow.py:"


def failed(wrong):
    """A result with the wrong elements at its front."""
    port = np.arange(1.0, 9.0)
    port[: len(wrong)] = wrong
    limit = Distance(1e-3, 1e-3, 1e-3)
    return FailedTensor(np.arange(1.0, 9.0), port, np.ones(8, bool), limit, ["a"], torch.float16)


def told(reference, x=X, dtype=torch.float16, wrong=(np.nan,), **options):
    program = Program(lambda tensors: reference(tensors["x"]), {"x": x}, **options)
    return overflow(program, failed(wrong), dtype)


def test_a_product_beyond_the_largest_number():
    text = told(lambda x: (x * 1e5).tanh().exp() * 1e9)
    assert text.startswith(f"mul {LINE}")
    assert text.endswith("is up to 3e+05 in the oracle, and float16 ends at 6.55e+04")
    assert told(lambda x: x * 1e5, dtype=torch.bfloat16) == ""
    assert told(lambda x: x * 1e39, dtype=torch.bfloat16) != ""


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (lambda x: x / x.norm(dim=-1, keepdim=True), "the sum of squares of linalg_vector_norm"),
        (lambda x: torch.nn.functional.layer_norm(x, (6,)), "the sum of squares of layer_norm"),
        (lambda x: torch.nn.functional.group_norm(x, 2), "the sum of squares of group_norm"),
        (lambda x: x - x.var(-1, keepdim=True).clamp(max=1.0), "the sum of squares of var"),
        (lambda x: x.pow(2).mean(-1), "pow"),
    ],
)
def test_squares_on_the_way(reference, words):
    assert told(reference) == told(reference, 60 * X) == ""
    assert told(reference, 120 * X).startswith(f"{words} {LINE}")


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax, torch.logsumexp])
def test_exponentials_on_the_way(function):
    assert told(lambda x: function(3 * x, -1)) == ""
    for factor in (4, 400):
        assert told(lambda x, factor=factor: function(factor * x, -1)).startswith("the exponential of ")


def test_a_sum_on_the_way_to_a_mean():
    assert told(lambda x: x.abs().mean(0), X + 1e4) == ""
    assert told(lambda x: x.abs().mean(0), X + 2e4).startswith(f"the sum of mean {LINE}")


def test_infinities_of_a_mask_and_operations_of_right_modules_are_none():
    assert told(lambda x: x.masked_fill(x > 0, -torch.inf).softmax(-1)) == ""
    assert told(lambda x: x * 1e5, is_changeable=lambda: False) == ""


@pytest.mark.parametrize("wrong", [(np.nan, np.inf), (-np.inf, 0.0), (0.0,)])
def test_nan_infinities_and_zeros_are_effects_of_an_overflow(wrong):
    assert told(lambda x: x * 1e5, wrong=wrong).startswith("mul ")


@pytest.mark.parametrize("wrong", [(), (np.nan, 7.0), (7.0,)])
def test_other_wrong_numbers_are_none(wrong):
    assert told(lambda x: x * 1e5, wrong=wrong) == ""
