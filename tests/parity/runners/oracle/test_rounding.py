"""Draws of rounding errors: as large as those that PyTorch makes, and none where nothing is rounded."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.capture.names import TapName
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights
from parity.runners import make_runner
from parity.runners.oracle.float64 import Float64Runner
from parity.runners.oracle.rounding import (
    FEW_ROWS,
    MOST_ELEMENTS,
    MOST_OF_MANY_ROWS,
    MOST_SAMPLES,
    RMS,
    Errors,
    Roundings,
    sample_count,
    samples_of,
)
from parity.verdict.bound import bound_for

FP32, FP16, BF16 = PRECISIONS["fp32"], PRECISIONS["fp16"], PRECISIONS["bf16"]
SIGNIFICANCE = 1e-3
"""Chance that a right program fails one test of a distribution, over all seeds; the seeds are fixed."""
PRECISE = pytest.mark.parametrize("precision", [FP32, FP16, BF16], ids=lambda p: p.name)


def _drawn(precision, function, *tensors):
    with torch.inference_mode(), Roundings(Errors(precision, seed=1)):
        return function(*tensors)


def _error(result, exact):
    return float((result.double() - exact).norm() / exact.norm())


def _values(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@PRECISE
@pytest.mark.parametrize(
    ("function", "terms"),
    [
        (lambda a, b: a * b, 1),
        (lambda a, b: a + b, 1),
        (lambda a, b: torch.exp(a), 1),
        (lambda a, b: a @ b.T, 60),
        (lambda a, b: torch.nn.functional.linear(a, b), 60),
        (lambda a, b: torch.nn.functional.layer_norm(a, a.shape[-1:]), 1),
        (lambda a, b: (a * b).sum(-1), 60),
        (lambda a, b: torch.nn.functional.silu(a @ b.T) @ a, 80),
    ],
    ids=["product", "sum", "exp", "matmul", "linear", "layer_norm", "dot", "two products"],
)
def test_draws_are_as_large_as_what_pytorch_does(precision, function, terms):
    """Within a factor of 1.6, both being random; PyTorch may add in a worse order, up to the worst."""
    a, b = (values.to(precision.dtype).double() for values in _values(2, 80, 60))
    exact = function(a, b)
    own = _error(function(a.to(precision.dtype), b.to(precision.dtype)), exact)
    drawn = _error(_drawn(precision, function, a, b), exact)
    worst_order = bound_for(precision, terms).k / bound_for(precision, 1).k
    assert own / 1.6 / worst_order < drawn < own * 1.6


@PRECISE
def test_one_rounding_has_its_mean_square(precision):
    """Over leading digits that are distributed logarithmically, and never more than a unit of round-off."""
    values = torch.exp(torch.linspace(0.0, 20.0 * math.log(2.0), 200_001, dtype=torch.float64))
    # A product by a power of two is exact, hence a sum that changes no digit.
    error = _drawn(precision, lambda x: x + x, values) / (2.0 * values) - 1.0
    assert float(error.square().mean().sqrt()) == pytest.approx(RMS * precision.unit_roundoff, rel=0.01)
    assert float(error.abs().max()) <= precision.unit_roundoff


def _errors_of_one_rounding(count):
    """Errors of sums in units of round-off: of 2.6, between 2 and 4."""
    values = torch.full((count,), 1.3, dtype=torch.float64)
    return ((_drawn(BF16, lambda x: x + x, values) - 2.6) / (2.0 * BF16.unit_roundoff)).numpy()


def test_the_error_of_a_rounding_is_uniform():
    errors = _errors_of_one_rounding(40_001)
    assert stats.kstest(errors, stats.uniform(-1.0, 2.0).cdf).pvalue > SIGNIFICANCE
    assert len(np.unique(errors)) > 20_000


@pytest.mark.parametrize("apart", range(1, 9))
def test_errors_are_independent(apart):
    """Several of them come from one word of random bits, neighbours among them."""
    errors = _errors_of_one_rounding(40_000)
    assert stats.pearsonr(errors[:-apart], errors[apart:]).pvalue > SIGNIFICANCE
    assert stats.pearsonr(np.abs(errors[:-apart]), np.abs(errors[apart:])).pvalue > SIGNIFICANCE


def test_errors_of_two_operations_are_independent():
    first = torch.full((20_000,), 1.3, dtype=torch.float64)
    one, two = _drawn(BF16, lambda x: torch.stack([x + x, x * 1.3]), first).numpy()
    assert stats.pearsonr(one, two).pvalue > SIGNIFICANCE


@PRECISE
def test_numbers_below_the_normal_ones_have_the_unit_of_the_smallest(precision):
    least = torch.finfo(torch.float16).smallest_normal
    values = torch.tensor([0.0, least / 3.9, least / 300], dtype=torch.float64).repeat(20_000, 1)
    drawn = _drawn(precision, lambda x: x + x, values) - 2.0 * values
    errors = drawn.square().mean(0).sqrt() * math.sqrt(3.0) / precision.unit_roundoff
    assert errors[0] == 0.0
    units = [least] * 2 if precision is FP16 else [least / 2, least / 256]
    assert errors[1:].tolist() == pytest.approx(units, rel=0.02)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 0.0,
        lambda x: x * torch.ones(4, dtype=torch.float64),
        lambda x: torch.maximum(x, torch.zeros(4, dtype=torch.float64)),
        lambda x: torch.relu(x),
        lambda x: x.T.contiguous().reshape(-1),
        lambda x: x * 0.0,
        lambda x: torch.cat([x, x]),
        lambda x: torch.floor(x),
        lambda x: x.clone().round_(),
        lambda x: torch.div(x, 0.5, rounding_mode="trunc"),
    ],
    ids=["plus zero", "times one", "maximum", "relu", "moved", "zero", "joined", "floor", "round", "divided"],
)
def test_what_is_exact_has_no_error(function):
    values = _values(5, 4)
    assert torch.equal(_drawn(BF16, function, values), function(values))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.floor().clamp(-3.0, 2.0) + 8.0,
        lambda x: torch.clamp(x * 0.0 + 9.0, max=7.0) - 1.0,
        lambda x: x.floor() * 3.0 - x.ceil(),
        lambda x: (x > 0.0).double().sum(0) - 1.0,
        lambda x: (x > 0.0).double().cumsum(0),
        lambda x: (x > 0.0).double() @ x.round().T,
        lambda x: x.clone().floor_().add_(2.0),
        lambda x: torch.remainder(x.round() * 5.0, 3.0),
        lambda x: torch.fmod(x.round() * 5.0, 3.0),
        lambda x: x / 0.5,
        lambda x: x * -0.125,
    ],
    ids=[
        "bucket",
        "bound",
        "product",
        "count",
        "ranks",
        "one-hot",
        "in place",
        "hash",
        "fmod",
        "halves",
        "eighths",
    ],
)
def test_whole_numbers_and_powers_of_two_have_no_error(function):
    values = _values(50, 4)
    assert torch.equal(_drawn(BF16, function, values), function(values))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.floor() * 0.3,
        lambda x: x.floor() + 0.1,
        lambda x: torch.add(x.floor(), x.ceil(), alpha=0.3),
        lambda x: x.floor() + 1000.0,
        lambda x: x.floor() + x,
        lambda x: (x.floor() * 1000.0).sum(0),
        lambda x: (x > 0.0).double().mean(0),
        lambda x: x.clamp(-1.0, 1.0) * 1.7,
        lambda x: x / 3.0,
    ],
    ids=["factor", "fraction", "alpha", "large", "mixed", "large sum", "mean", "clamped", "third"],
)
def test_other_numbers_keep_their_error(function):
    values = _values(50, 4)
    assert not torch.equal(_drawn(BF16, function, values), function(values))


def test_a_power_of_two_rounds_where_it_leaves_the_normal_numbers():
    values = torch.full((64,), 1.7e-4, dtype=torch.float64)
    drawn = _drawn(FP16, lambda x: x * 0.125, values)
    assert not torch.equal(drawn, values * 0.125)
    assert torch.equal(_drawn(BF16, lambda x: x * 0.125, values), values * 0.125)


def test_an_operation_in_place_has_an_error_and_stays_in_place():
    values = _values(5, 4)
    result = values.clone()
    view = result[1:]
    _drawn(BF16, lambda x: x.mul_(1.7), result)
    exact = values * 1.7
    assert not torch.equal(result, exact)
    assert _error(result, exact) < BF16.unit_roundoff
    assert torch.equal(view, result[1:])


def test_other_types_stay_as_they_are():
    numbers = torch.arange(1, 9)
    assert torch.equal(_drawn(BF16, lambda x: x * 3, numbers), numbers * 3)
    single = torch.rand(8)
    assert torch.equal(_drawn(BF16, lambda x: x * 3, single), single * 3)


def test_a_sum_that_cancels_has_the_error_of_its_terms():
    terms = torch.tensor([0.7, 1e4, -1e4], dtype=torch.float64).repeat(2000, 1)
    drawn = _drawn(FP32, lambda x: x.sum(-1), terms) - 0.7
    expected = RMS * FP32.accumulation_roundoff * math.sqrt(math.log2(3) * 2e8)
    assert float(drawn.square().mean().sqrt()) == pytest.approx(expected, rel=0.1)


@PRECISE
@pytest.mark.parametrize("function", ["linear", "convolution"])
def test_a_sum_that_a_bias_cancels_has_the_error_of_the_sum(precision, function):
    """A program may round the sum before it adds the bias. Without cancellation it has no further error."""
    rows = torch.full((4000, 3), 1.0, dtype=torch.float64)
    weight = torch.tensor([[1.0, 0.5, 0.2]], dtype=torch.float64)

    def error_of(bias):
        bias = torch.tensor([bias], dtype=torch.float64)
        run = {
            "linear": lambda x: torch.nn.functional.linear(x, weight, bias),
            "convolution": lambda x: torch.nn.functional.conv1d(x[:, :, None], weight[:, :, None], bias),
        }[function]
        error = _drawn(precision, run, rows) - run(rows)
        return float(error.square().mean().sqrt())

    unit = precision.unit_roundoff / math.sqrt(3.0)
    added = RMS * precision.accumulation_roundoff * math.sqrt(2.29 * math.log2(4))
    # The sum is 1.7, between 1 and 2, and the result 0.7 or 2.7.
    assert error_of(-1.0) == pytest.approx(math.hypot(unit, unit / 2, added), rel=0.05)
    assert error_of(1.0) == pytest.approx(math.hypot(2 * unit, added), rel=0.05)


def test_the_same_seed_gives_the_same_draw():
    values = _values(5, 4)
    first, second = (_drawn(BF16, lambda x: x * 3.0, values) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((FEW_ROWS, 90_000), MOST_SAMPLES),
        ((4, 8, 8, 3), MOST_SAMPLES),
        ((), MOST_SAMPLES),
        ((FEW_ROWS + 1, 10), MOST_OF_MANY_ROWS),
        ((5, 8, 8, 2_000), 0),
        ((1024, 64), 4),
        ((1 << 18,), 1),
        ((1 << 18, 2), 0),
        ((0, 4), 0),
    ],
)
def test_a_tap_of_many_rows_has_fewer_draws(shape, count):
    assert samples_of(torch.tensor(0.0).expand(shape)) == count


def test_integers_have_no_draws():
    assert samples_of(torch.zeros(4, 4, dtype=torch.int64)) == 0


def test_how_many_draws_there_are():
    assert sample_count(1000) == MOST_SAMPLES
    assert sample_count(MOST_ELEMENTS // 3) == 3
    assert sample_count(MOST_ELEMENTS + 1) == 0


def samples(tap):
    return str(TapName.parse(tap).of_samples())


@pytest.fixture(scope="module")
def oracles():
    """The oracle and the plain float64 runner with the same weights, and inputs."""
    case = load_case("dlrm_tiny")
    weights = case_weights(case)[0]
    runners = [make_runner("oracle"), Float64Runner(), make_runner("torch")]
    for runner in runners:
        runner.load(case, BF16, weights)
    return runners, make_inputs(case).typical.arrays


def test_the_oracle_itself_is_untouched_and_its_draws_lie_around_it(oracles):
    (oracle, plain, _), arrays = oracles
    actual, exact = oracle.run_tapped(arrays).tensors, plain.run_tapped(arrays).tensors
    assert [name for name in actual if not TapName.parse(name).samples] == list(exact)
    assert all(torch.equal(actual[name], exact[name]) for name in exact)
    for name in exact:
        draws = actual[samples(name)]
        assert draws.shape == (MOST_SAMPLES, *exact[name].shape)
        assert all(_error(draw, exact[name]) < 20 * BF16.unit_roundoff for draw in draws)
    assert not torch.equal(*actual[samples("top_l.4")][:2])


def test_a_module_alone_has_draws_of_its_own_roundings_only(oracles):
    (oracle, plain, reference), arrays = oracles
    capture = reference.record(arrays)
    call = next(call for call in capture.calls if call.path == "top_l.4")
    actual = oracle.run_call(call, capture.call_inputs, arrays)
    exact = plain.run_call(call, capture.call_inputs, arrays)["top_l.4"]
    assert torch.equal(actual["top_l.4"], exact)
    # One rounding of the product's result.
    assert all(_error(draw, exact) < BF16.unit_roundoff for draw in actual[samples("top_l.4")])


@PRECISE
def test_whole_results_of_whole_operands_are_exact(precision):
    largest = round(1.0 / precision.unit_roundoff)
    steps = torch.arange(16, dtype=torch.float64)
    squares = steps.square() * 3.0
    assert torch.equal(_drawn(precision, lambda x: (x / 3.0).sqrt(), squares), steps)
    assert not torch.equal(_drawn(precision, lambda x: x * 0.3, steps), steps * 0.3)
    large = torch.full((64,), 2.0 * largest, dtype=torch.float64)
    assert not torch.equal(_drawn(precision, lambda x: x + 3.0, large), large + 3.0)


@PRECISE
def test_results_of_the_type_from_numbers_of_the_type_are_exact(precision):
    """A rounding to integers may take 15 / 10 up or down, and does so in every correct program alike."""
    ages = torch.tensor([5.0, 15.0, 25.0, 55.0], dtype=torch.float64).repeat(50)
    ages[:20] = 0.0
    for run in (
        lambda x: x / 10.0,
        lambda x: torch.round(x / 10.0),
        lambda x: x / 8.0,
        lambda x: x / torch.full_like(x, 10.0),
        lambda x: (x / 10.0) * 2.5,
        lambda x: torch.floor(x / 10.0 + 0.5),
        lambda x: 9.5 - x,
        lambda x: torch.full_like(x, 0.5) + torch.full_like(x, 0.25),
    ):
        assert torch.equal(_drawn(precision, run, ages), run(ages))
    # Neither the factor nor the quotient is a number of the type.
    for run in (lambda x: x * 0.1, lambda x: x / 7.0, lambda x: x + 0.3, lambda x: (x / 7.0) * 7.0):
        assert not torch.equal(_drawn(precision, run, ages), run(ages))


def test_float32_results_have_no_error():
    x = torch.rand(200, generator=torch.Generator().manual_seed(3)) + 1.0
    assert torch.equal(_drawn(BF16, lambda x: x * 1.25, x), x * 1.25)
