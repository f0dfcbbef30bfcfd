"""Relatives that an operation is confused with: the tried ones, and the causes that name them."""

import re

import pytest
import torch
import torch.nn.functional as F

from parity.verdict.causes.exchanges import exchanges_of
from parity.verdict.causes.operations import Operation
from tests.parity.verdict.planted import told_alone

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


# The reference, the port, and the words of the cause.
CONFUSED = {
    "activation": (F.silu, torch.relu, "with relu in place of silu"),
    "activation inside": (lambda x: F.relu(x) * Y, lambda x: F.gelu(x) * Y, "with gelu in place of relu"),
    "activation of six": (lambda x: F.relu6(4 * x), lambda x: F.relu(4 * x), "with relu in place of relu6"),
    "slope": (
        lambda x: F.leaky_relu(x, 0.1) * Y,
        lambda x: F.leaky_relu(x, 0.01) * Y,
        "with negative_slope 0.01 in place of 0.1 in leaky_relu",
    ),
    "parameter of elu": (
        lambda x: F.elu(x) * Y,
        lambda x: F.elu(x, 0.5) * Y,
        "with alpha 0.5 in place of 1 in elu",
    ),
    "softplus": (lambda x: F.softplus(x) * Y, lambda x: x.exp() * Y, "with exp in place of softplus"),
    "logarithm of a gate": (
        lambda x: F.logsigmoid(x) * Y,
        lambda x: torch.sigmoid(x) * Y,
        "with sigmoid in place of logsigmoid",
    ),
    "gate for its logarithm": (
        lambda x: torch.sigmoid(x) * Y,
        lambda x: F.logsigmoid(x) * Y,
        "with logsigmoid in place of sigmoid",
    ),
    "gate that is forgotten": (lambda x: F.logsigmoid(x) * Y, lambda x: x * Y, "without logsigmoid"),
    "halves of a unit": (
        lambda x: F.glu(x, -1),
        lambda x: x[..., 4:] * torch.sigmoid(x[..., :4]),
        "with the halves of glu exchanged",
    ),
    "halves of the other axis": (
        lambda x: F.glu(x, 1),
        lambda x: x[:, 3:] * torch.sigmoid(x[:, :3]),
        "with the halves of glu exchanged",
    ),
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
        "operands of where exchanged|<=? in place of >",
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
def test_a_relative_in_place_of_an_operation_is_told_and_another_error_of_the_same_size_is_not(name):
    reference, port, words = CONFUSED[name]
    assert re.search(words, told_alone(reference, port, X))


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


def test_a_vector_is_a_tensor_of_which_a_product_may_be_a_sum():
    assert "with add in place of mul" in tried(aten.mul.Tensor, X[0, 0], Y[0, 0])


def test_either_value_of_a_choice_everywhere():
    results = tried(aten.where.self, MASK, X, Y)
    torch.testing.assert_close(results["with the first value of where everywhere"], X)
    torch.testing.assert_close(results["with the second value of where everywhere"], Y)
    # In the type and the shape of the result.
    first = tried(aten.where.self, MASK, X[0, 0].float(), Y)["with the first value of where everywhere"]
    torch.testing.assert_close(first, X[0, 0].float().double().expand(X.shape))


def test_a_product_without_a_factor_and_a_quotient_without_its_divisor():
    left_out = {text for text in tried(aten.mul.Tensor, X, MASK.double()) if text.startswith("without")}
    assert left_out == {"without the mask in mul", "without the first factor of shape 3x6x8"}
    assert sorted(tried(aten.div.Tensor, X, Y[0])) == [
        "with +1 at the divisor of div",
        "with -1 at the divisor of div",
        "with mul in place of div",
        "with the operands of div exchanged",
        "with the result of div as int32",
        "without the divisor of shape 6x8",
    ]
    complex_ones = torch.complex(MASK.double(), torch.zeros(3, 6, 8, dtype=torch.float64))
    assert "without the first factor of shape 3x6x8" in tried(aten.mul.Tensor, complex_ones, complex_ones)
    assert "without the mask in mul" not in tried(aten.mul.Tensor, complex_ones, complex_ones)


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "logical_and", "logical_or"])
def test_one_of_two_conditions_left_out(name):
    function = getattr(aten, name)
    function, other = getattr(function, "Tensor", None) or function.default, MASK[0, 0]
    results = tried(function, MASK, other)
    assert torch.equal(results[f"without the second condition in {name}"], MASK)
    assert torch.equal(results[f"without the first condition in {name}"], other.expand(MASK.shape))
    # Bits of integers are no condition.
    if name.startswith("bitwise"):
        assert "condition" not in str(tried(function, MASK.int(), other.int()))


def test_a_gate_and_its_complement():
    gate = tried(aten.sigmoid.default, X)["with 1 - x in place of the gate x of sigmoid"]
    torch.testing.assert_close(gate, torch.sigmoid(-X))
    complement = tried(aten.rsub.Scalar, Y, 1)["with x in place of its complement 1 - x"]
    torch.testing.assert_close(complement, Y)


@pytest.mark.parametrize(
    ("function", "arguments", "is_cast"),
    [
        (aten.mul.Tensor, (X, Y), True),
        (aten.div.Tensor, (X, Y), True),
        # A sum has a fraction, as its operands have.
        (aten.add.Tensor, (X, Y), False),
        (aten.mul.Tensor, (torch.complex(X, Y), Y), False),
        # A single number is no tensor of one.
        (aten.mul.Tensor, (torch.tensor(40.3), torch.tensor(1.2)), False),
        (aten.add.Tensor, (torch.tensor(2**40), 1), False),
        (aten.add.Tensor, (torch.tensor([2**40]), 1), True),
        (aten.add.Tensor, (torch.tensor([2**20]), 1), False),
        (aten.sub.Tensor, (torch.tensor([2**40]), 1), True),
        (aten.remainder.Scalar, (torch.tensor([2**40]), 2**41), False),
    ],
)
def test_a_result_may_have_been_cast_to_32_bits(function, arguments, is_cast):
    casts = {text: own for text, own in tried(function, *arguments).items() if text.endswith("as int32")}
    name = function.overloadpacket.__name__
    assert list(casts) == ([f"with the result of {name} as int32"] if is_cast else [])
    for own in casts.values():
        result = function(*arguments)
        torch.testing.assert_close(own, result.to(torch.int32).to(result.dtype), rtol=0, atol=0)


def test_a_cast_that_leaves_only_zeros_is_told_as_such():
    small = torch.tensor([0.5, 0.25], dtype=torch.float64)
    assert "with 0 in place of the result of mul" in tried(aten.mul.Tensor, small, small)
    assert "with the result of mul as int32" in tried(aten.mul.Tensor, small, 5 * small)


def test_a_cast_is_told_without_the_marks_of_its_operation():
    large = torch.tensor([2.0**40], dtype=torch.float64)
    assert "with the result of to_copy as int32" in tried(aten._to_copy.default, large, dtype=torch.int64)


def test_indices_of_two_axes_and_a_mean_for_an_extreme():
    rows, columns = torch.tensor([0, 1]), torch.tensor([1, 2])
    results = tried(aten.index.Tensor, X, [rows, None, columns])
    torch.testing.assert_close(results["with the indices of axes 0 and 2 exchanged"], X[columns, :, rows])
    assert [text for text in results if "indices of axes" in text] == [
        "with the indices of axes 0 and 2 exchanged"
    ]
    for function, name in ((aten.max.dim, "max"), (aten.min.dim, "min")):
        mean, places = tried(function, X, 1)[f"with mean in place of {name}"]
        torch.testing.assert_close(mean, X.mean(1))
        assert torch.equal(places, getattr(X, name)(1)[1])


@pytest.mark.parametrize(("padding", "is_tried"), [((), False), ((-1,), False), ((0,), True), ((3,), True)])
def test_padding_and_weights_of_bags_can_be_forgotten(padding, is_tried):
    weights = torch.linspace(0.5, 2, 18, dtype=torch.float64)
    arguments = (TABLE, IDS, OFFSETS, False, 0, False, weights, False, *padding)
    operation = Operation(aten._embedding_bag.default, arguments, {})
    changes = {change.text: change for change in exchanges_of(operation)}
    index = padding[0] if is_tried else None
    bags = F.embedding_bag(IDS, TABLE, OFFSETS, mode="sum", padding_idx=index)
    result, *_ = changes["without the weights of the bags"].result(operation)
    torch.testing.assert_close(result, bags)
    assert ("with padding among the bags" in changes) == is_tried


def test_every_number_of_groups_that_divides_the_channels_is_tried():
    texts = tried(aten.native_group_norm.default, X, None, None, 3, 6, 8, 2, 1e-5)
    assert [text for text in texts if "groups" in text] == [
        f"with {count} groups in place of 2" for count in (1, 3, 6)
    ]


def test_exchanged_indices_are_one_mistake_of_all_lookups():
    first, second, third = torch.tensor([2, 1]), torch.tensor([4, 0]), torch.tensor([3, 5])
    operation = Operation(aten.index.Tensor, (Y, [first, second, third]), {})
    changes = {change.text: change for change in exchanges_of(operation) if "indices" in change.text}
    words = [f"the indices of axes {pair} exchanged" for pair in ("0 and 1", "0 and 2", "1 and 2")]
    assert list(changes) == [f"with {own}" for own in words]
    assert [change.together for change in changes.values()] == [f"lookups that have {own}" for own in words]
    assert {change.takes_few for change in changes.values()} == {False}
