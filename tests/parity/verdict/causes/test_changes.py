"""Changes of one operation: which ones are tried, their words, and the results of the changed operation."""

import math

import pytest
import torch
import torch.nn.functional as F

from parity.verdict.causes.changes import EPSILONS, LARGEST_EPSILON, MOST_PARTS, _factors, changes_of
from parity.verdict.causes.operations import Operation

aten = torch.ops.aten


def tensor(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = tensor(1, 3, 6, 8)
SQUARE, WIDE = tensor(2, 6, 6), tensor(3, 6, 4)
LEFT, RIGHT = tensor(4, 3, 6, 6), tensor(5, 3, 6, 4)
BIAS = tensor(6, 8)


def tried(function, *args, **kwargs):
    """The results of an operation's changes, by their words."""
    operation = Operation(function, args, kwargs)
    return {change.text: change.result(operation) for change in changes_of(operation)}


def assert_tried(expected, function, *args, part="", **kwargs):
    """The changes whose words have a part in common are the expected ones, with their results."""
    actual = {text: result for text, result in tried(function, *args, **kwargs).items() if part in text}
    assert list(actual) == list(expected)
    for text, result in actual.items():
        torch.testing.assert_close(result, expected[text], rtol=1e-12, atol=1e-12)


def others(present):
    return [epsilon for epsilon in EPSILONS if epsilon != present]


def test_every_usual_epsilon_of_a_norm():
    words = "with an epsilon of {:g} in place of 1e-06 in layer_norm".format
    expected = {words(eps): aten.native_layer_norm(X, [8], BIAS, BIAS, eps) for eps in others(1e-6)}
    assert_tried(expected, aten.native_layer_norm.default, X, [8], BIAS, BIAS, 1e-6, part="epsilon")
    # An epsilon that a norm has by name may be of any size.
    for unusual in (0.0, 0.5):
        assert "with an epsilon" in str(tried(aten.native_layer_norm.default, X, [8], None, None, unusual))


@pytest.mark.parametrize(
    ("function", "name"),
    [(aten.add.Tensor, "add"), (aten.clamp_min.default, "clamp_min"), (aten.clamp.default, "clamp")],
)
def test_an_epsilon_by_hand_is_a_small_constant(function, name):
    for present in (1e-6, LARGEST_EPSILON):
        expected = {
            f"with an epsilon of {eps:g} in place of {present:g} in {name}": function(X, eps)
            for eps in others(present)
        }
        assert_tried(expected, function, X, present, part="epsilon")
    for constant in (0.0, -1e-6, 1.1 * LARGEST_EPSILON, 1):
        assert_tried({}, function, X, constant, part="epsilon")
    assert_tried({}, aten.sub.Tensor, X, 1e-6, part="epsilon")


def test_the_bias_of_a_product_or_a_norm():
    assert_tried(
        {"without the bias of addmm": X[0] @ X[1].T},
        *(aten.addmm.default, SQUARE[0], X[0], X[1].T),
        part="bias",
    )
    assert_tried(
        {"without the bias of baddbmm": LEFT @ RIGHT}, aten.baddbmm.default, RIGHT, LEFT, RIGHT, part="bias"
    )
    assert_tried(
        {"without the bias of layer_norm": aten.native_layer_norm(X, [8], BIAS, None, 1e-5)},
        *(aten.native_layer_norm.default, X, [8], BIAS, BIAS, 1e-5),
        part="bias",
    )
    assert_tried({}, aten.native_layer_norm.default, X, [8], BIAS, None, 1e-5, part="bias")


@pytest.mark.parametrize(("shape", "words"), [((8,), "8"), ((), "1"), ((6, 8), "6x8"), ((6, 1), "6x1")])
def test_a_term_of_a_sum_left_out(shape, words):
    term = tensor(7, *shape)
    own = "x".join(map(str, X.shape))
    for function, sign in ((aten.add.Tensor, 1), (aten.sub.Tensor, -1)):
        name = function.overloadpacket.__name__
        without, alone = (
            f"without the term of shape {words} in {name}",
            f"without the term of shape {own} in {name}",
        )
        expected = {without: X, alone: sign * term.expand(X.shape)}
        assert_tried(expected, function, X, term, part=" term ")
        expected = {alone: term.expand(X.shape), without: sign * X}
        assert_tried(expected, function, term, X, part=" term ")


def test_terms_of_one_shape_are_told_by_their_place():
    other = tensor(7, *X.shape)
    expected = {"without the second term in add": X, "without the first term in add": other}
    assert_tried(expected, aten.add.Tensor, X, other, part=" term ")


def test_a_constant_is_a_term_and_an_epsilon_or_a_factor_is_none():
    for function, name in ((aten.add.Tensor, "add"), (aten.sub.Tensor, "sub")):
        for constant in (0.5, -0.5, 3):
            assert_tried({f"without the term {constant} in {name}": X}, function, X, constant, part=" term ")
        for small in (1e-5, LARGEST_EPSILON):
            assert_tried({}, function, X, small, part=" term ")
    assert_tried({}, aten.add.Tensor, X, 0, part=" term ")
    assert_tried({}, aten.mul.Tensor, X, BIAS, part=" term ")
    assert_tried({}, aten.mul.Tensor, X, 0.5, part=" term ")


def test_a_number_without_axes_is_a_factor_on_either_side():
    factor = torch.tensor(0.95, dtype=torch.float64)
    for operands in ((factor, X), (X, factor)):
        assert_tried({"without the step times 0.95": X}, aten.mul.Tensor, *operands, part="the step")
    # The numerator of a quotient is none, nor is a result without axes beside its weight.
    assert_tried({}, aten.div.Tensor, factor, X, part="the step")
    weighted = {"without the step times 2": factor}
    assert_tried(weighted, aten.mul.Tensor, factor, 2 * torch.ones_like(factor), part="the step")


@pytest.mark.parametrize("function", [aten.tril.default, aten.triu.default])
def test_the_diagonal_of_a_triangle(function):
    name = function.overloadpacket.__name__
    assert_tried(
        {
            f"with the mask shifted: diagonal 1 in place of 2 in {name}": function(SQUARE, 1),
            f"with the mask shifted: diagonal 3 in place of 2 in {name}": function(SQUARE, 3),
        },
        *(function, SQUARE, 2),
        part="diagonal",
    )
    assert tried(function, SQUARE, 2)[f"without {name}"] is SQUARE


def test_shifted_positions():
    positions = torch.arange(5)
    assert_tried(
        {"with positions shifted by +1": positions + 1, "with positions shifted by -1": positions - 1},
        *(aten.arange.default, 5),
    )


def test_shifted_indices_stay_in_the_table():
    ids = torch.tensor([0, 1, 4, 5])
    up, down = torch.tensor([1, 2, 5, 5]), torch.tensor([0, 0, 3, 4])
    words = "with indices of {} shifted by {}".format
    assert_tried(
        {words("embedding", "+1"): WIDE[up], words("embedding", "-1"): WIDE[down]},
        *(aten.embedding.default, WIDE, ids),
        part="shifted",
    )
    for axis, table in ((0, WIDE), (1, WIDE.T.contiguous())):
        assert_tried(
            {
                words("index_select", "+1"): table.index_select(axis, up),
                words("index_select", "-1"): table.index_select(axis, down),
            },
            *(aten.index_select.default, table, axis, ids),
            part="shifted",
        )


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_a_comparison_is_left_out(name):
    compare = getattr(aten, name).Scalar
    ids = torch.tensor([[0, 3, 1], [2, 1, 0]])
    false = torch.zeros(2, 3, dtype=torch.bool)
    expected = {f"with {name} that holds nowhere": false, f"with {name} that holds everywhere": ~false}
    assert_tried(expected, compare, ids, 1, part="holds")
    # One that decides nothing is not left out.
    assert_tried({}, compare, ids, 7, part="holds")


@pytest.mark.parametrize(
    ("sign", "others"),
    [
        ("<", "<= > >="),
        ("<=", "< >= >"),
        (">", ">= < <="),
        (">=", "> <= <"),
        ("==", "!="),
        ("!=", "=="),
    ],
)
def test_another_comparison(sign, others):
    x, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0, 2.0])
    functions = {
        "<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge, "==": torch.eq, "!=": torch.ne
    }  # fmt: skip
    expected = {f"with {other} in place of {sign}": functions[other](x, y) for other in others.split()}
    compare = getattr(aten, functions[sign].__name__).Tensor
    assert_tried(expected, compare, x, y, part=" in place of ")
    # Nearest first: of equal results the first one is told.
    assert [text for text in tried(compare, x, y) if " in place of " in text] == list(expected)


def test_another_axis():
    words = "with {} over axis {} in place of {}".format
    for axis in (1, -2):
        assert_tried(
            {words("softmax", 0, 1): X.softmax(0), words("softmax", 2, 1): X.softmax(2)},
            *(aten._softmax.default, X, axis, False),
            part="axis",
        )
    assert_tried({words("flip", 1, 0): SQUARE.flip(1)}, aten.flip.default, SQUARE, [0], part="axis")
    expected = {words("sum", 0, 1): SQUARE.sum(0, True)}
    assert_tried(expected, aten.sum.dim_IntList, SQUARE, [1], True, part="axis")


def test_an_axis_without_another_one():
    for x in (BIAS, BIAS[0]):
        assert_tried({}, aten._softmax.default, x, -1, False, part="axis")
    for axes in ([0, 1], None):
        assert_tried({}, aten.sum.dim_IntList, SQUARE, axes, part="axis")
    # Another axis of these is another shape, or no error that ports have.
    assert_tried({}, aten.select.int, SQUARE, 0, 1, part="axis")


def test_a_layer_norm_over_an_axis_that_fits():
    words = "with layer_norm over axis {} in place of 2".format

    def over(axis, weight, x=X):
        return F.layer_norm(x.transpose(axis, -1), [x.shape[axis]], weight).transpose(axis, -1)

    def tried_over(x, weight):
        results = tried(aten.native_layer_norm.default, x, [x.shape[-1]], weight, None, 1e-5)
        return {text: result[0] for text, result in results.items() if "over" in text}

    actual = tried_over(X, None)
    assert list(actual) == [words(0), words(1)]
    for axis in (0, 1):
        torch.testing.assert_close(actual[words(axis)], over(axis, None))
    assert tried_over(X, BIAS) == {}
    cube = tensor(8, 3, 8, 8)
    actual = tried_over(cube, BIAS)
    assert list(actual) == [words(1)]
    torch.testing.assert_close(actual[words(1)], over(1, BIAS, cube))
    # Over two axes there is no other choice.
    assert "over" not in str(tried(aten.native_layer_norm.default, X, [6, 8], None, None, 1e-5))


def test_transposed_operands_of_products_are_square():
    other = tensor(9, 6, 6)
    for function, args, expected in (
        (aten.mm.default, (SQUARE, WIDE), {"self of mm": SQUARE.T @ WIDE}),
        (aten.mm.default, (WIDE.T, SQUARE), {"mat2 of mm": WIDE.T @ SQUARE.T}),
        (aten.bmm.default, (LEFT, RIGHT), {"self of bmm": LEFT.mT @ RIGHT}),
        (aten.bmm.default, (RIGHT.mT, LEFT), {"mat2 of bmm": RIGHT.mT @ LEFT.mT}),
        (
            *(aten.addmm.default, (other, SQUARE, other)),
            {"mat1 of addmm": other + SQUARE.T @ other, "mat2 of addmm": other + SQUARE @ other.T},
        ),
        (aten.addmm.default, (BIAS, X[0][:, :6], WIDE @ WIDE.T @ X[0]), {"mat1 of addmm": None}),
        (
            *(aten.baddbmm.default, (LEFT, LEFT, LEFT.flip(0))),
            {
                "batch1 of baddbmm": LEFT + LEFT.mT @ LEFT.flip(0),
                "batch2 of baddbmm": LEFT + LEFT @ LEFT.flip(0).mT,
            },
        ),
    ):
        actual = {text: result for text, result in tried(function, *args).items() if "transposed" in text}
        assert list(actual) == [f"with {words} transposed" for words in expected]
        for text, result in expected.items():
            if result is not None:
                torch.testing.assert_close(actual[f"with {text} transposed"], result)


def test_exchanged_parts():
    words = "with parts {} and {} of {} exchanged".format
    a, b, c = SQUARE.split(2)
    for function, args in (
        (aten.split.Tensor, (SQUARE, 2)),
        (aten.split_with_sizes.default, (SQUARE, [2, 2, 2])),
        (aten.chunk.default, (SQUARE, 3)),
        (aten.unbind.int, (torch.stack([a, b, c]),)),
    ):
        name = function.overloadpacket.__name__
        assert_tried(
            {words(0, 1, name): (b, a, c), words(0, 2, name): (c, b, a), words(1, 2, name): (a, c, b)},
            *(function, *args),
            part="exchanged",
        )
    # Parts of other sizes are not exchanged by mistake.
    assert list(tried(aten.split_with_sizes.default, SQUARE, [1, 4, 1])) == [words(0, 2, "split_with_sizes")]
    many = len(tried(aten.unbind.int, tensor(1, MOST_PARTS + 1, 2)))
    assert many == math.comb(MOST_PARTS, 2)


def test_exchanged_operands():
    a, b, c = SQUARE, SQUARE + 1, WIDE
    words = "with operands {} and {} of {} exchanged".format
    # Operands may have other lengths along the axis that joins them, such as features of two sources.
    orders = {words(0, 1, "cat"): [b, a, c], words(0, 2, "cat"): [c, b, a], words(1, 2, "cat"): [a, c, b]}
    tried_orders = {text: torch.cat(order, 1) for text, order in orders.items()}
    assert_tried(tried_orders, aten.cat.default, [a, b, c], 1)
    assert not tried(aten.cat.default, [torch.empty(0), X], 0)
    assert_tried({words(0, 1, "stack"): torch.stack([b, a], 1)}, aten.stack.default, [a, b], 1)


def test_a_reshape_in_place_of_another_order():
    assert_tried(
        {"with a reshape in place of permute": X.reshape(8, 3, 6)}, aten.permute.default, X, [2, 0, 1]
    )
    assert_tried({"with a reshape in place of transpose": X.reshape(6, 3, 8)}, aten.transpose.int, X, 0, 1)


def test_axes_of_one_length_stay_without_the_operation():
    """A reshape to the shape that they have changes nothing, so that no port has one there."""
    square = torch.arange(18.0, dtype=torch.float64).reshape(2, 3, 3)
    assert_tried({"without transpose": square}, aten.transpose.int, square, 1, 2, part="trans")
    assert_tried({"without permute": square}, aten.permute.default, square, [0, 2, 1], part="permute")
    # Axes of 1 are no order, and alone they are none that a port could leave out.
    wide = {"without permute": square.unsqueeze(1)}
    assert_tried(wide, aten.permute.default, square.unsqueeze(2), [0, 2, 3, 1], part="permute")
    assert_tried({}, aten.permute.default, square.unsqueeze(2), [0, 2, 1, 3], part="permute")


@pytest.mark.parametrize(
    ("shape", "size", "is_tried"),
    [
        ((3, 6, 8), [3, 6, 2, 4], True),
        ((3, 1, 8), [3, 1, 2, 4], True),
        ((1, 8), [1, 2, 4], True),
        ((3, 8), [3, 1, 8], False),
        ((3, 8), [3, 8, 1], False),
        ((3, 8), [3, -1, 4], False),
        ((3, 8), [3, 2, -1], False),
        ((3, 6, 8), [18, 8], False),
        ((3, 6, 8), [3, 6, 2, 2, 2], False),
        ((3, 6, 8), [3, 8, 6], False),
    ],
)
@pytest.mark.parametrize("function", [aten.view.default, aten._unsafe_view.default])
def test_a_folded_axis_in_the_other_order(function, shape, size, is_tried):
    x = tensor(1, *shape)
    name = function.overloadpacket.__name__.removeprefix("_")
    folded = x.reshape(*size[:-2], size[-1], size[-2]).mT if is_tried else None
    expected = {f"with the last two axes of {name} exchanged": folded} if is_tried else {}
    assert_tried(expected, function, x, size, part="last two axes")


@pytest.mark.parametrize(
    ("shape", "size", "axes"),
    [
        ((3, 6, 8), [18, 8], (0, 1)),
        ((3, 6, 8), [-1, 8], (0, 1)),
        ((3, 4, 6, 8), [3, 24, 8], (1, 2)),
        ((3, 4, 1, 6), [3, 24], (1, 2)),
        ((3, 4, 1, 6), [3, -1], (1, 2)),
        ((3, 4, 1, 6), [3, 1, 24], (1, 2)),
        # Views that join no pair of axes, or more.
        ((3, 4, 6, 8), [12, 48], None),
        ((3, 4, 6), [72], None),
        ((3, 4, 6), [3, 4, 6, 1], None),
        ((3, 4, 6), [4, 18], None),
        ((3, 4), [4, 3], None),
    ],
)
def test_axes_are_joined_in_the_other_order(shape, size, axes):
    x = tensor(1, *shape)
    expected = {}
    if axes is not None:
        long = [length for length in shape if length != 1]
        first, second = (long[axis] for axis in axes)
        text = f"with the joined axes of {first} and {second} exchanged before a view"
        expected = {text: x.reshape(long).transpose(*axes).reshape(size)}
    assert_tried(expected, aten.view.default, x, size, part="joined")


def test_a_product_has_a_factor_of_a_width():
    x, y = tensor(1, 1, 2), tensor(2, 2, 3)
    product, words = x @ y, "with the result of mm times {}".format
    expected = {}
    for width in (2, 3):
        expected |= {
            words(f"{width}"): product * width,
            words(f"{1 / width:.6g} = 1/{width}"): product / width,
        }
    for width in (2, 3):
        root = math.sqrt(width)
        expected |= {
            words(f"{root:.6g} = sqrt({width})"): product * root,
            words(f"{1 / root:.6g} = 1/sqrt({width})"): product / root,
        }
    assert_tried(expected, aten.mm.default, x, y, part="times")
    assert_tried({}, aten.mul.Tensor, SQUARE, SQUARE, part="times")


CONSTANT = 0.123456789
HALF, BRAIN = (torch.tensor(CONSTANT).to(t).item() for t in (torch.float16, torch.bfloat16))
ROUNDED = [0.1, 0.12, 0.123, 0.1235, 0.12346, 0.123457, 0.1234568, HALF, BRAIN, 0.0]


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize(
    ("function", "is_first"),
    [
        (aten.mul.Tensor, False),
        (aten.div.Tensor, False),
        (aten.add.Tensor, False),
        (aten.sub.Tensor, False),
        (aten.pow.Tensor_Scalar, False),
        (aten.pow.Scalar, True),
        (aten.rsub.Scalar, False),
    ],
)
def test_a_rounded_constant(function, is_first, as_tensor):
    if as_tensor:
        packet = function.overloadpacket
        function = packet.Tensor_Tensor if packet is aten.pow else packet.Tensor
    x, name = X.abs() + 1, function.overloadpacket.__name__

    def run(value):
        return function(value, x) if is_first else function(x, value)

    present = torch.tensor(CONSTANT, dtype=torch.float64) if as_tensor else CONSTANT
    expected = {
        f"with the constant {value:.8g} in place of 0.12345679 in {name}": run(
            torch.tensor(value, dtype=torch.float64) if as_tensor else value
        )
        for value in ROUNDED
    }
    arguments = (present, x) if is_first else (x, present)
    actual = {text: result for text, result in tried(function, *arguments).items() if "constant" in text}
    assert list(actual) == list(expected)
    for text, result in actual.items():
        torch.testing.assert_close(result, expected[text], equal_nan=True)


@pytest.mark.parametrize("shape", [(1,), (8,), (6, 8)])
def test_a_number_is_no_result_beside_a_tensor_with_axes(shape):
    factor, x = torch.tensor(0.95, dtype=torch.float64), tensor(11, *shape)
    assert_tried({"without the step times 0.95": x}, aten.mul.Tensor, factor, x, part="the step")


def test_integers_without_their_factor_keep_the_type_of_the_product():
    """What follows may run with floating-point numbers only."""
    counts, factor = torch.arange(6), torch.tensor(0.5, dtype=torch.float64)
    operation = Operation(aten.mul.Tensor, (counts, factor), {})
    step = next(change for change in changes_of(operation) if "the step" in change.text)
    torch.testing.assert_close(step.result(operation), counts.double(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("function", "constant", "expected"),
    [
        (aten.div.Tensor, math.sqrt(8), {"with 8 in place of its root 2.82843 in div": X / 8}),
        (aten.mul.Tensor, 8**-0.5, {"with 0.125 in place of its root 0.353553 in mul": X / 8}),
        (
            aten.div.Tensor,
            4,
            {
                "with 16 in place of its root 4 in div": X / 16,
                "with the root 2 in place of 4 in div": X / 2,
            },
        ),
        (aten.mul.Tensor, 0.3, {}),
        (aten.mul.Tensor, -4.0, {}),
        (aten.div.Tensor, 1.0, {}),
        (aten.mul.Tensor, math.inf, {}),
        # The square of a large number is infinite, and no power.
        (
            aten.mul.Tensor,
            4e200,
            {"with the root 2e+100 in place of 4e+200 in mul": X * 2e100},
        ),
        # That of a small one is 0.
        (
            aten.mul.Tensor,
            1e-200,
            {"with the root 1e-100 in place of 1e-200 in mul": X * 1e-100},
        ),
        # The square of a third is a width's inverse, a third is another one.
        (
            aten.mul.Tensor,
            1 / 3,
            {
                "with 0.111111 in place of its root 0.333333 in mul": X / 9,
                "with the root 0.57735 in place of 0.333333 in mul": X / 3**0.5,
            },
        ),
        (aten.mul.Tensor, 2.0**0.5, {"with 2 in place of its root 1.41421 in mul": X * 2}),
        # Neither these numbers nor their inverses or squares are whole.
        (aten.mul.Tensor, 0.4, {}),
        (aten.mul.Tensor, 2.4, {}),
        (aten.add.Tensor, 4.0, {}),
    ],
)
def test_a_root_of_a_width_that_is_forgotten_or_taken_twice(function, constant, expected):
    assert_tried(expected, function, X, constant, part="root")


def test_a_constant_is_left_out_of_a_product():
    assert_tried({"without the step times 0.25": X}, aten.mul.Tensor, X, 0.25, part="step")
    assert_tried({"without the step divided by 8": X}, aten.div.Tensor, X, 8, part="step")
    for neutral in (0, 1, 0.0, 1.0):
        assert_tried({}, aten.mul.Tensor, X, neutral, part="step")
    assert_tried({}, aten.add.Tensor, X, 0.25, part="step")
    assert_tried({}, aten.rsub.Scalar, X, 0.25, part="step")
    # A power of a constant base is no product with it.
    assert_tried({}, aten.pow.Scalar, 0.25, X, part="step")


@pytest.mark.parametrize("constant", [True, math.inf, math.nan, 0.0, 2.0, BIAS])
def test_no_rounded_constant(constant):
    """Truth values, constants that no rounding changes, and tensors with axes."""
    operation = Operation(aten.add.Tensor, (X, constant), {})
    assert not [change.text for change in changes_of(operation) if "constant" in change.text]


def test_a_constant_of_integers_may_be_one_off():
    ids = torch.arange(6)
    words = "with the constant {} in place of 3 in {}".format
    clamp_min, clamp_max = aten.clamp_min.default, aten.clamp_max.default
    for function, name in ((clamp_min, "clamp_min"), (clamp_max, "clamp_max"), (aten.lt.Scalar, "lt")):
        results = tried(function, ids, 3)
        for other in (2, 4):
            assert torch.equal(results[words(other, name)], function(ids, other))
    assert words(2, "clamp_max") not in tried(aten.clamp_max.default, X, 3)


def test_a_whole_divisor_or_power_of_numbers_may_be_one_off():
    words = "with the constant {} in place of 3 in {}".format
    for function, name in ((aten.div.Tensor, "div"), (aten.pow.Tensor_Scalar, "pow")):
        results = tried(function, X, 3)
        for other in (2, 4):
            torch.testing.assert_close(results[words(other, name)], function(X, other))
        assert words(2, name) not in tried(function, X, 3.5)


def test_the_factors_of_a_product_are_those_of_its_widths_and_of_the_heads_of_several():
    def widths(left, right):
        return {
            reading
            for reading in _factors(torch.zeros(left), torch.zeros(right)).values()
            if "/" not in reading
        }

    assert widths((4, 6), (6, 8)) == {"6", "8", "sqrt(6)", "sqrt(8)"}
    assert widths((4, 6), (6, 1)) == {"6", "sqrt(6)"}
    assert 1.0 not in _factors(torch.zeros(4, 6), torch.zeros(6, 1))
    heads = {"sqrt(2)", "sqrt(3)", "sqrt(6)"}
    assert widths((6, 5, 7), (6, 7, 11)) == {"5", "7", "11", "sqrt(5)", "sqrt(7)", "sqrt(11)"} | heads
