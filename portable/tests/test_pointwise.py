"""Element-wise operations against NumPy in float64 and in integers."""

import numpy as np
import pytest
import torch
from harness import assert_within_ulps, float64, run
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy_free import erf
from strategies import FEW, FLOATS, floats, shapes

from mlir_tensorrt.compiler.dialects import tensorrt
from tripy_portable.dtypes import BY_TORCH
from tripy_portable.ir.types import tensor_type
from tripy_portable.kernels.pointwise import MANY_ELEMENTS, half_of_bool

INTEGERS = [np.int32, np.int64, np.int8]
SHAPES = shapes()


def element_wise(operation):
    attribute = tensorrt.ElementWiseOperationAttr.get(operation)
    return lambda a, b: tensorrt.element_wise(a, b, attribute)


@st.composite
def broadcast_pair(draw, arrays):
    """Two tensors of equal rank whose extents are equal or 1."""
    shape = draw(SHAPES)
    shapes = []
    for _ in range(2):
        ones = draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
        shapes.append(tuple(1 if one else extent for one, extent in zip(ones, shape)))
    return draw(arrays(shapes[0])), draw(arrays(shapes[1]))


ARITHMETIC = {
    "kSUM": np.add,
    "kSUB": np.subtract,
    "kPROD": np.multiply,
    "kDIV": np.divide,
    "kMAX": np.maximum,
    "kMIN": np.minimum,
    "kFLOOR_DIV": None,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("operation", ARITHMETIC)
@FEW
@given(data=st.data())
def test_float_arithmetic_is_correctly_rounded(operation, dtype, data):
    a, b = data.draw(broadcast_pair(lambda shape: floats(shape, dtype)))
    actual = run(element_wise(operation), a, b)
    with np.errstate(all="ignore"):
        if operation == "kFLOOR_DIV":
            # The quotient is rounded to the type before the floor is taken.
            quotient = torch.from_numpy(np.asarray(float64(a) / float64(b))).to(dtype)
            exact = np.floor(float64(quotient))
        else:
            exact = ARITHMETIC[operation](float64(a), float64(b))
    expected = torch.from_numpy(np.asarray(exact)).to(dtype)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_floor_division_of_floats_is_the_floor_of_the_quotient():
    actual = run(element_wise("kFLOOR_DIV"), np.float32([1.0, -1.0]), np.float32([0.1, 0.1]))
    assert actual.tolist() == [10.0, -10.0]


def wrapped(values, dtype):
    """Python integers, wrapped to the type."""
    bits = np.iinfo(dtype).bits
    return [(v + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for v in values]


def truncated_quotient(a, b):
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


EXACT = {
    "kSUM": lambda a, b: a + b,
    "kSUB": lambda a, b: a - b,
    "kPROD": lambda a, b: a * b,
    "kMAX": max,
    "kMIN": min,
    "kDIV": truncated_quotient,
    "kFLOOR_DIV": lambda a, b: 0 if b == 0 else a // b,
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("operation", EXACT)
@FEW
@given(data=st.data())
def test_integer_arithmetic_wraps_and_division_by_zero_is_zero(operation, dtype, data):
    limits = np.iinfo(dtype)
    edge = st.sampled_from([limits.min, limits.max, -1, 0, 1, 2, -7])
    elements = st.one_of(st.integers(limits.min, limits.max).map(int), edge)
    a, b = data.draw(broadcast_pair(lambda shape: hnp.arrays(dtype, shape, elements=elements)))
    actual = run(element_wise(operation), a, b)
    pairs = np.broadcast_arrays(a, b)
    exact = [EXACT[operation](int(x), int(y)) for x, y in zip(pairs[0].reshape(-1), pairs[1].reshape(-1))]
    assert actual.dtype == torch.from_numpy(a.reshape(-1)[:0].copy()).dtype
    assert actual.reshape(-1).tolist() == wrapped(exact, dtype)
    assert tuple(actual.shape) == pairs[0].shape


@pytest.mark.parametrize("operation", ["kMAX", "kMIN"])
def test_nan_propagates_through_max_and_min(operation):
    actual = run(element_wise(operation), np.float32([np.nan, 1.0]), np.float32([1.0, np.nan]))
    assert actual.isnan().all()


COMPARISONS = {"kEQUAL": np.equal, "kGREATER": np.greater, "kLESS": np.less}


@pytest.mark.parametrize("operation", COMPARISONS)
@FEW
@given(data=st.data())
def test_comparisons(operation, data):
    dtype = data.draw(st.sampled_from([np.float32, np.int32, np.int64]))
    elements = (
        st.sampled_from([-2, -1, 0, 1, 2])
        if dtype is not np.float32
        else st.sampled_from([0.0, -0.0, 1.5, np.nan, np.inf])
    )
    a, b = data.draw(broadcast_pair(lambda shape: hnp.arrays(dtype, shape, elements=elements)))
    actual = run(element_wise(operation), a, b)
    np.testing.assert_array_equal(actual.numpy(), COMPARISONS[operation](a, b))


@pytest.mark.parametrize(
    ("operation", "oracle"), [("kAND", np.logical_and), ("kOR", np.logical_or), ("kXOR", np.logical_xor)]
)
@FEW
@given(data=st.data())
def test_logic(operation, oracle, data):
    a, b = data.draw(broadcast_pair(lambda shape: hnp.arrays(np.bool_, shape)))
    np.testing.assert_array_equal(run(element_wise(operation), a, b).numpy(), oracle(a, b))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@FEW
@given(data=st.data())
def test_pow(dtype, data):
    shape = data.draw(SHAPES)
    a = data.draw(floats(shape, dtype, 0.25, 4.0))
    b = data.draw(floats(shape, dtype, -3.0, 3.0))
    assert_within_ulps(run(element_wise("kPOW"), a, b), np.power(float64(a), float64(b)), ulps=2)


def test_integer_pow_truncates_and_saturates():
    actual = run(element_wise("kPOW"), np.int64([2, 2, -3, 10]), np.int64([10, -1, 3, 30]))
    assert actual.tolist() == [1024, 0, -27, 2**63 - 1]


def unary(operation):
    attribute = tensorrt.UnaryOperationAttr.get(operation)
    return lambda v: tensorrt.unary(v, attribute)


UNARY = {
    "kEXP": (np.exp, -20, 20),
    "kLOG": (np.log, 2**-10, 60),
    "kSQRT": (np.sqrt, 0, 64),
    "kRECIP": (lambda x: 1 / x, 2**-6, 64),
    "kABS": (np.abs, -64, 64),
    "kNEG": (np.negative, -64, 64),
    "kSIN": (np.sin, -3, 3),
    "kCOS": (np.cos, -1.5, 1.5),
    "kCEIL": (np.ceil, -64, 64),
    "kFLOOR": (np.floor, -64, 64),
    "kROUND": (np.round, -64, 64),
    "kSIGN": (np.sign, -64, 64),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("operation", UNARY)
@FEW
@given(data=st.data())
def test_unary_functions(operation, dtype, data):
    oracle, low, high = UNARY[operation]
    x = data.draw(floats(data.draw(SHAPES), dtype, low, high))
    actual = run(unary(operation), x)
    # torch's vectorised functions are within 1 ulp in float32; the sum's cancellation in log near 1 costs
    # more.
    assert_within_ulps(actual, np.asarray(oracle(float64(x))), ulps=4)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.__name__)
def test_unary_functions_of_integers_wrap(dtype):
    least = np.iinfo(dtype).min
    x = np.array([least, -3, 0, 5], dtype)
    expected = {"kABS": [least, 3, 0, 5], "kNEG": [least, 3, 0, -5], "kSIGN": [-1, -1, 0, 1]}
    for operation, values in expected.items():
        assert run(unary(operation), x).tolist() == values


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_erf(dtype):
    x = torch.linspace(-4, 4, 401).to(dtype)
    exact = erf(float64(x))
    # torch's vectorised erf is accurate to the spacing at 1, and not relative to small results.
    bound = 2 * np.finfo(np.float32).eps + torch.finfo(dtype).eps * np.abs(exact)
    assert (np.abs(float64(run(unary("kERF"), x)) - exact) <= bound).all()


@pytest.mark.parametrize(
    "operation", ["kTAN", "kSINH", "kCOSH", "kASIN", "kACOS", "kATAN", "kASINH", "kATANH"]
)
def test_trigonometry(operation):
    names = {
        "kASIN": "arcsin",
        "kACOS": "arccos",
        "kATAN": "arctan",
        "kASINH": "arcsinh",
        "kATANH": "arctanh",
    }
    oracle = getattr(np, names.get(operation, operation[1:].lower()))
    x = np.linspace(-0.9, 0.9, 19, dtype=np.float32)
    actual = run(unary(operation), x)
    assert_within_ulps(actual, oracle(x.astype(np.float64)), ulps=4)


def test_acosh_and_not():
    x = np.linspace(1.1, 9, 9, dtype=np.float32)
    acosh = run(unary("kACOSH"), x)
    assert_within_ulps(acosh, np.arccosh(x.astype(np.float64)), ulps=4)
    negated = run(unary("kNOT"), np.array([True, False]))
    assert negated.tolist() == [False, True]


def gelu(x):
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


ACTIVATIONS = {
    "kRELU": (lambda x: np.maximum(x, 0), 0.5),
    "kSIGMOID": (lambda x: 1 / (1 + np.exp(-x)), 4),
    "kTANH": (np.tanh, 4),
    "kSOFTSIGN": (lambda x: x / (1 + np.abs(x)), 4),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
@FEW
@given(data=st.data())
def test_activations(name, dtype, data):
    oracle, ulps = ACTIVATIONS[name]
    x = data.draw(floats(data.draw(SHAPES), dtype, -8, 8))
    actual = run(lambda v: tensorrt.activation(v, tensorrt.ActivationTypeAttr.get(name)), x)
    assert_within_ulps(actual, np.asarray(oracle(float64(x))), ulps)


@pytest.mark.parametrize("name", ["kGELU_ERF", "kGELU_TANH"])
def test_gelu(name):
    x = np.linspace(-4, 8, 97, dtype=np.float32)
    wide = x.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    exact = gelu(wide) if name == "kGELU_ERF" else 0.5 * wide * (1 + np.tanh(inner))
    actual = run(lambda v: tensorrt.activation(v, tensorrt.ActivationTypeAttr.get(name)), x)
    # 1 + erf(x) cancels for negative x: the error is relative to x and not to the result.
    assert (
        np.abs(float64(actual) - exact) <= 2 * np.finfo(np.float32).eps * np.maximum(np.abs(wide), 1e-30)
    ).all()


def test_relu_of_integers_and_int8_activations_round():
    relu = tensorrt.ActivationTypeAttr.get("kRELU")
    assert run(lambda v: tensorrt.activation(v, relu), np.int64([-5, 0, 7])).tolist() == [0, 0, 7]
    sigmoid = tensorrt.ActivationTypeAttr.get("kSIGMOID")
    assert run(lambda v: tensorrt.activation(v, sigmoid), np.int8([-9, 0, 9])).tolist() == [0, 0, 1]


def cast_to(dtype):
    return lambda v: tensorrt.cast(tensor_type(v.type.dims, BY_TORCH[dtype]), v)


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", [torch.int8, torch.int32, torch.int64], ids=str)
def test_float_to_integer_truncates_and_saturates_and_nan_is_zero(source, target):
    values = [0.0, 1.7, -1.7, 2.5, 1e3, -1e3, 1e10, -1e10, 1e20, -1e20, np.inf, -np.inf, np.nan]
    x = torch.tensor(values).to(source)
    limits = torch.iinfo(target)
    expected = [
        0
        if np.isnan(v)
        else int(np.clip(np.trunc(v), limits.min, limits.max))
        if np.isfinite(v) and abs(v) < 2**62
        else (limits.max if v > 0 else limits.min)
        for v in float64(x)
    ]
    assert run(cast_to(target), x).tolist() == expected


@FEW
@given(data=st.data())
def test_float_to_integer_truncates_in_range(data):
    x = data.draw(floats(data.draw(SHAPES), torch.float32, -1e6, 1e6))
    np.testing.assert_array_equal(run(cast_to(torch.int32), x).numpy(), np.trunc(float64(x)))


def test_integer_narrowing_wraps_and_widening_keeps():
    x = np.int64([2**31, -(2**31) - 1, 255, -1])
    assert run(cast_to(torch.int32), x).tolist() == [-(2**31), 2**31 - 1, 255, -1]
    assert run(cast_to(torch.int8), x).tolist() == [0, -1, -1, -1]
    assert run(cast_to(torch.int64), np.int8([-128, 127])).tolist() == [-128, 127]


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64, np.int8])
def test_to_bool_is_not_zero_and_from_bool_is_zero_or_one(dtype):
    assert run(cast_to(torch.bool), np.array([0, 1, -2, 3], dtype)).tolist() == [False, True, True, True]
    back = run(cast_to(torch.from_numpy(np.zeros(1, dtype)).dtype), np.array([True, False]))
    assert back.tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("arranged", [lambda x: x, lambda x: x.T, lambda x: x[:, ::3], lambda x: x[None]])
def test_many_booleans_become_halves_as_pytorch_casts_them(dtype, arranged):
    truths = arranged(torch.from_numpy(np.random.default_rng(0).random((MANY_ELEMENTS // 100, 301)) > 0.5))
    assert truths.numel() > MANY_ELEMENTS
    halves, expected = half_of_bool(truths, dtype), truths.to(dtype)
    assert torch.equal(halves.view(torch.int16), expected.view(torch.int16))
    assert (halves.dtype, halves.stride()) == (dtype, expected.stride())


def test_nan_is_true_and_float16_overflows_to_infinity():
    assert run(cast_to(torch.bool), np.float32([np.nan, np.inf])).tolist() == [True, True]
    assert run(cast_to(torch.float16), np.float32([1e6, -1e6])).tolist() == [np.inf, -np.inf]


@FEW
@given(data=st.data())
def test_select_broadcasts_all_three(data):
    a, b = data.draw(broadcast_pair(lambda shape: floats(shape, torch.float32)))
    shape = np.broadcast_shapes(a.shape, b.shape)
    condition = data.draw(hnp.arrays(np.bool_, shape))
    actual = run(tensorrt.select, condition, a, b)
    np.testing.assert_array_equal(actual.numpy(), np.where(condition, a.numpy(), b.numpy()))


def test_functions_outside_of_their_domain_follow_ieee():
    x = np.float32([-1.0, 0.0, -0.0, np.inf])
    assert torch.equal(run(unary("kSQRT"), x)[1:], torch.tensor([0.0, -0.0, torch.inf]))
    assert torch.equal(run(unary("kLOG"), x)[1:], torch.tensor([-torch.inf, -torch.inf, torch.inf]))
    assert torch.equal(run(unary("kRECIP"), x)[1:], torch.tensor([torch.inf, -torch.inf, 0.0]))
    assert run(unary("kSQRT"), x)[0].isnan()
    assert run(unary("kLOG"), x)[0].isnan()


def test_division_by_zero_follows_ieee():
    quotient = run(element_wise("kDIV"), np.float32([1, -1, 0]), np.float32([0, 0, 0]))
    assert quotient[:2].tolist() == [np.inf, -np.inf]
    assert quotient[2].isnan()
