"""Relatives that an operation is confused with: the tried ones, and the causes that name them."""

import re

import pytest
import torch
import torch.nn.functional as F

from parity.verdict.causes.exchanges import exchanges_of
from parity.verdict.causes.operations import Operation
from tests.parity.verdict.planted import told, with_noise

aten = torch.ops.aten
X = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.rand(3, 6, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 0.5
TABLE = torch.randn(20, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
MASK = Y > 1
IDS, OFFSETS = torch.arange(18) % 7, torch.tensor([0, 5, 11])


def tried(function, *args, **kwargs):
    """The results of an operation's exchanges, by their words."""
    operation = Operation(function, args, kwargs)
    return {change.text: change.result(operation) for change in exchanges_of(operation)}


def told_of(reference, port):
    """The cause for functions of X, whose parameter has any name."""
    return told(lambda x: reference(x), lambda x: port(x), {"x": X})


# The reference, the port, and the words of the cause.
CONFUSED = {
    "activation": (F.silu, torch.relu, "with relu in place of silu"),
    "activation inside": (lambda x: F.relu(x) * Y, lambda x: F.gelu(x) * Y, "with gelu in place of relu"),
    "activation of six": (lambda x: F.relu6(4 * x), lambda x: F.relu(4 * x), "with relu in place of relu6"),
    "activation forgotten": (
        lambda x: torch.sigmoid(x.sum(-1)),
        lambda x: x.sum(-1),
        "without sigmoid",
    ),
    "logarithm": (
        lambda x: torch.log1p(Y + x**2),
        lambda x: torch.log(Y + x**2),
        "with log in place of log1p",
    ),
    "clamp forgotten": (lambda x: x.clamp(-0.5, 0.5) * Y, lambda x: x * Y, "without clamp"),
    "mean": (lambda x: x.mean(1), lambda x: x.sum(1), "with sum in place of mean"),
    "extremes": (lambda x: x.amax(1), lambda x: x.amin(1), "with amin in place of amax"),
    "sign": (lambda x: torch.tanh(x + Y), lambda x: torch.tanh(x - Y), "with sub in place of add"),
    "sum": (lambda x: torch.tanh(x * Y), lambda x: torch.tanh(x + Y), "with add in place of mul"),
    "product": (lambda x: torch.tanh(x + Y), lambda x: torch.tanh(x * Y), "with mul in place of add"),
    "order of a quotient": (lambda x: Y / (2 + x**2), lambda x: (2 + x**2) / Y, "operands of div exchanged"),
    "branches": (
        lambda x: torch.where(x > 0, x, Y),
        lambda x: torch.where(x > 0, Y, x),
        "operands of where exchanged|<= in place of >",
    ),
    "bags": (
        lambda x: F.embedding_bag(IDS, TABLE, OFFSETS, mode="sum") + x[0, 0, :4],
        lambda x: F.embedding_bag(IDS, TABLE, OFFSETS, mode="mean") + x[0, 0, :4],
        "with bags by mean in place of sum",
    ),
    "variance": (
        lambda x: x.var(-1, correction=0),
        lambda x: x.var(-1),
        "with a correction of 1 in place of 0 in var",
    ),
    "rounding": (
        lambda x: torch.div(8 * x, 3, rounding_mode="floor"),
        lambda x: torch.div(8 * x, 3, rounding_mode="trunc"),
        "with rounding trunc in place of floor in div",
    ),
    "corners": (
        lambda x: F.interpolate(x[None], scale_factor=2.0, mode="bilinear", align_corners=False),
        lambda x: F.interpolate(x[None], scale_factor=2.0, mode="bilinear", align_corners=True),
        "with align_corners True in place of False",
    ),
    "padding in a pool's mean": (
        lambda x: F.avg_pool2d(x[None], 2, padding=1),
        lambda x: F.avg_pool2d(x[None], 2, padding=1, count_include_pad=False),
        "with count_include_pad False in place of True",
    ),
    "sum up to here forgotten": (lambda x: x.cumsum(1) * Y, lambda x: x * Y, "without cumsum"),
    "mask forgotten": (
        lambda x: torch.softmax(x.masked_fill(MASK, -1e4), -1),
        lambda x: torch.softmax(x, -1),
        "without masked_fill",
    ),
    "choice forgotten": (
        lambda x: torch.where(MASK, x, torch.zeros_like(x)).sum(1),
        lambda x: x.sum(1),
        "with the first value of where everywhere",
    ),
    "product with a mask forgotten": (
        lambda x: (x * MASK[..., :1].double()).sum(1),
        lambda x: x.sum(1),
        "without the mask in mul",
    ),
    "weights of bags": (
        lambda x: F.embedding_bag(IDS.view(3, 6), TABLE, mode="sum", per_sample_weights=x[:, :, 0]),
        lambda x: F.embedding_bag(IDS.view(3, 6), TABLE, mode="sum") + 0 * x[0, 0, :4],
        "without the weights of the bags",
    ),
    "padding of bags": (
        lambda x: F.embedding_bag(IDS, TABLE, OFFSETS, mode="mean", padding_idx=2) + x[0, 0, :4],
        lambda x: F.embedding_bag(IDS, TABLE, OFFSETS, mode="mean") + x[0, 0, :4],
        "with padding among the bags",
    ),
    "quotient for a product": (
        lambda x: x * 0.7 + Y,
        lambda x: x / 0.7 + Y,
        "with div in place of mul by 0.7",
    ),
    "causal attention": (
        lambda x: F.scaled_dot_product_attention(x, x, Y, is_causal=True),
        lambda x: F.scaled_dot_product_attention(x, x, Y),
        "is_causal False|without|diagonal",
    ),
}


@pytest.mark.parametrize("name", CONFUSED)
def test_a_relative_in_place_of_an_operation_is_told(name):
    reference, port, words = CONFUSED[name]
    text = told_of(reference, port)
    assert re.search(words, text), text


@pytest.mark.parametrize("name", CONFUSED)
def test_another_error_of_the_same_size_is_not(name):
    reference, port, _ = CONFUSED[name]
    assert told_of(reference, with_noise(reference, port, X)) == ""


def test_every_other_activation_and_none():
    results = tried(aten.silu.default, X)
    assert results["without silu"] is X
    assert torch.equal(results["with gelu in place of silu"], F.gelu(X))
    assert "with silu in place of silu" not in results


def test_the_correction_of_a_variance_is_1_unless_it_is_named():
    results = tried(aten.var.correction, X, [-1])
    text = "with a correction of 0 in place of 1 in var"
    assert torch.equal(results[text], X.var(-1, correction=0))


def test_a_relative_has_the_options_of_the_operation():
    results = tried(aten.sum.dim_IntList, X.float(), [1], dtype=torch.float64)
    assert results["with mean in place of sum"].dtype is torch.float64


@pytest.mark.parametrize("other", [2.0, torch.tensor(2.0)])
def test_a_constant_of_a_sum_is_none_of_a_product(other):
    assert "with mul in place of add" in tried(aten.add.Tensor, X, X)
    for function in (aten.add.Tensor, aten.mul.Tensor):
        texts = tried(function, X, other)
        assert not any(text.startswith(("with mul in", "with add in")) for text in texts)


def test_a_number_is_not_exchanged_with_a_tensor():
    assert not any("exchanged" in text for text in tried(aten.div.Scalar, X, 2.0))


def test_options_without_an_effect_on_the_result_are_not_tried():
    assert tried(aten.embedding.default, TABLE, IDS) == {}
    assert set(tried(aten._softmax.default, X, -1, False)) == {
        "with log_softmax in place of softmax",
        "without softmax",
    }


def test_one_bound_of_two_can_be_forgotten():
    results = tried(aten.clamp.default, X, -1, 1)
    assert torch.equal(results["without the min of clamp, -1"], X.clamp(max=1))
    assert torch.equal(results["without the max of clamp, 1"], X.clamp(min=-1))
    assert not any("without the" in text for text in tried(aten.clamp.default, X, -1))


def test_running_statistics_are_never_written():
    """A batch norm that trains would write into the buffers of the reference."""
    mean, variance = torch.zeros(6), torch.ones(6)
    operation = aten.native_batch_norm.default
    assert tried(operation, X.float(), None, None, mean, variance, False, 0.1, 1e-5) == {}
    assert torch.equal(mean, torch.zeros(6))
    assert torch.equal(variance, torch.ones(6))


def test_a_product_with_other_numbers_has_no_mask():
    for other in (Y, torch.ones_like(X), torch.zeros_like(X), 1.0):
        assert "without the mask in mul" not in tried(aten.mul.Tensor, X, other)
