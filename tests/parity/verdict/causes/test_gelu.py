"""GELU by erf and by tanh, as one operation and written out."""

import math

import pytest
import torch
import torch.nn.functional as F

from parity.verdict.causes.changes import Operation, changes_of

aten = torch.ops.aten
X = torch.tensor([-40.0, -3.0, -0.7, -1e-3, 0.0, 1e-3, 0.7, 3.0, 40.0], dtype=torch.float64)
BY_ERF, BY_TANH = "with GELU by erf in place of tanh", "with GELU by tanh in place of erf"


def tried(function, *args, **kwargs):
    operation = Operation(function, args, kwargs)
    return {change.text: change.result(operation) for change in changes_of(operation)}


def argument_of_tanh(x):
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


@pytest.mark.parametrize(("present", "other", "words"), [("none", "tanh", BY_TANH), ("tanh", "none", BY_ERF)])
def test_the_other_form_of_the_operation(present, other, words):
    result = tried(aten.gelu.default, X, approximate=present)[words]
    torch.testing.assert_close(result, F.gelu(X, approximate=other))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_other_form_of_a_sum_that_is_written_out(dtype):
    """Half of x times one more than this factor is GELU."""
    x = X.to(dtype)
    factors = {
        BY_ERF: (aten.tanh.default, argument_of_tanh(x), torch.erf(X / math.sqrt(2))),
        BY_TANH: (aten.erf.default, x / math.sqrt(2), torch.tanh(argument_of_tanh(X))),
    }
    for words, (function, argument, factor) in factors.items():
        torch.testing.assert_close(
            tried(function, argument)[words],
            factor.to(dtype),
            rtol=1e-5 if dtype is torch.float32 else 1e-9,
            atol=1e-12,
        )
