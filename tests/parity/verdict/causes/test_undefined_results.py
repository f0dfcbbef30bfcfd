"""The cause of NaN and infinities, which only the port's result has."""

import math

import pytest
import torch

from tests.parity.verdict.planted import told, told_of

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
X[2] = 0.0
MASK = torch.rand(6, 5, generator=torch.Generator().manual_seed(4)) < 0.4
MASK[1] = True
COUNTS = torch.tensor([3.0, 0.0, 1.0, 7.0, 0.0, 2.0], dtype=torch.float64)


def normed(x, epsilon):
    return x / (x.square().sum(-1, keepdim=True).sqrt() + epsilon)


def test_a_divisor_without_its_epsilon():
    text = told_of(lambda x: normed(x, 1e-6), lambda x: normed(x, 0.0), X)
    assert text == "fits the reference with an epsilon of 0 in place of 1e-06 in add"


def test_a_mean_of_no_element():
    text = told_of(lambda n: X.sum(-1) / n.clamp(min=1.0), lambda n: X.sum(-1) / n, COUNTS)
    assert text == "fits the reference without clamp"


def test_a_logarithm_without_its_floor():
    text = told_of(lambda n: torch.log(n.clamp(min=1e-6)), torch.log, COUNTS)
    assert text == "fits the reference without clamp"


def filled(mask, value):
    return X.masked_fill(mask, value).softmax(-1)


def chosen(mask, value):
    return torch.where(mask, torch.full_like(X, value), X).softmax(-1)


@pytest.mark.parametrize(("masked", "words"), [(filled, "masked_fill"), (chosen, "full_like")])
def test_rows_that_are_masked_as_a_whole(masked, words):
    text = told(lambda mask: masked(mask, -1e9), lambda mask: masked(mask, -math.inf), {"mask": MASK})
    assert text == f"fits the reference with the constant -inf in place of -1e+09 in {words}"


def test_other_undefined_elements_contradict_a_cause():
    def port(x):
        result = normed(x, 0.0)
        result[4, 1] = math.nan
        return result

    assert told_of(lambda x: normed(x, 1e-6), port, X) == ""


def test_undefined_elements_alone_tell_nothing():
    assert told_of(lambda x: normed(x, 1e-6), lambda x: normed(x, 0.0), torch.zeros_like(X)) == ""


def test_a_cause_holds_in_calls_without_undefined_elements():
    def reference(x, n):
        return x / n.clamp(min=0.5)

    def port(x, n):
        return x / n

    def other(x, n):
        return torch.where(n == 0, x / n, reference(x, n))

    first, second = {"x": X[:, 0], "n": COUNTS}, {"x": X[:, 1], "n": COUNTS + 0.25}
    text = "fits the reference without clamp"
    assert told(reference, port, first) == told(reference, port, first, others=[second]) == text
    assert told(reference, other, first) == text
    # 0.25 is an element that the clamp changes, and the port does not.
    assert told(reference, other, first, others=[second]) == ""
