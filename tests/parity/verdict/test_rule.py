"""The verdict rule: it accepts and refuses by its bound, which follows from its derivation."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.verdict.bound import ROUNDINGS_PER_OPERATION, bound_for
from parity.verdict.distances import Distance, Oracle, carrying_rows, largest_absolute
from parity.verdict.elements import EQUAL_VALUES
from parity.verdict.rule import failure, judge
from parity.verdict.sensitivity import INSENSITIVE_ABOVE, Rows, min_detectable_error, why_by_nature

FP32, FP16, BF16 = PRECISIONS["fp32"], PRECISIONS["fp16"], PRECISIONS["bf16"]


@pytest.fixture
def product():
    """A matrix product in float64 and rounded to float32 twice, in different summation orders."""
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(40, 211, generator=generator)
    b = torch.randn(211, 30, generator=generator)
    reordered = torch.randperm(211, generator=generator)
    return a.double() @ b.double(), a @ b, a[:, reordered] @ b[reordered]


def test_two_summation_orders_pass(product):
    verdict = judge(*product, FP32, longest_sum=211)
    assert verdict.passed
    assert verdict.checked == 1200
    assert 0 < verdict.margin <= 1


def test_a_relative_change_of_one_in_a_hundred_thousand_fails(product):
    oracle, reference, port = product
    verdict = judge(oracle, reference, port * (1 + 1e-5), FP32, longest_sum=211)
    assert not verdict.passed
    assert "exceeds" in verdict.reason


@pytest.mark.parametrize("factor", [1.006, 0.994])
def test_a_common_factor_is_detected_below_the_norms_of_rounding(factor):
    exact = torch.randn(64, 48, generator=torch.Generator().manual_seed(5)).double()
    rounded = exact.bfloat16()
    assert judge(exact, rounded, rounded, BF16, longest_sum=1).passed
    verdict = judge(exact, rounded, (exact * factor).bfloat16(), BF16, longest_sum=1)
    assert verdict.port.l2 < verdict.limit.l2
    assert verdict.port.largest < verdict.limit.largest
    assert not verdict.passed
    assert verdict.port.scale_error == pytest.approx(factor - 1, abs=verdict.reference.l2 / math.sqrt(64))
    assert "scale error" in verdict.reason


def test_the_worst_integers_are_those_that_are_farthest_off():
    exact = torch.arange(40)
    port = exact + 1
    port[31] += 9
    verdict = judge(exact, exact, port, FP32, longest_sum=0)
    assert not verdict.passed
    assert [(worst.index, worst.port) for worst in verdict.worst][0] == ((31,), 41.0)


def test_integers_of_another_type_keep_their_bound():
    exact = torch.arange(40)
    verdict = judge(exact, exact, exact.int(), FP32, longest_sum=3)
    assert (verdict.status, verdict.bound) == ("FAIL", bound_for(FP32, 3))


def test_few_rows_allow_a_larger_scale_error():
    """Elements of one row may share a rounding."""
    bound, u = bound_for(BF16, 1), BF16.unit_roundoff
    expected = Distance(l2=0.002, largest=0.002, scale_error=0.003)
    for rows in (1, 4, 1e6):
        limit = bound.limit(expected, rows)
        squares = (bound.k * 0.003) ** 2 + (2 * u) ** 2 / rows + u**2
        assert limit.scale_error == pytest.approx(math.sqrt(squares), rel=1e-12)
    assert bound_for(BF16, 0).limit(Distance(0.0, 0.0, 0.0), 1).scale_error == 0.0


@pytest.mark.parametrize("shared", [0.0, 0.004])
def test_the_lasting_part_of_a_limit_is_what_all_rows_share(shared):
    """Independent roundings average out over the rows. An error of the reference in all rows does not."""
    exact = torch.randn(20_000, 8, generator=torch.Generator().manual_seed(5)).double()
    rounded = (exact * (1 + shared)).bfloat16()
    verdict = judge(exact, rounded, rounded, BF16, longest_sum=1)
    u, k = BF16.unit_roundoff, verdict.bound.k
    assert verdict.lasting_limit == pytest.approx(math.hypot(k * shared, u), rel=0.05)
    assert verdict.lasting_limit <= verdict.limit.scale_error
    few = judge(exact[:3], rounded[:3], rounded[:3], BF16, longest_sum=1)
    # A few rows prove no shared error.
    assert few.lasting_limit == pytest.approx(u)
    assert few.limit.scale_error > verdict.limit.scale_error


def test_rows_help_while_twice_the_lasting_part_is_below_one_percent():
    assert not _limited_by_nature(INSENSITIVE_ABOVE / 2)
    assert _limited_by_nature(INSENSITIVE_ABOVE / 2 * 1.001)
    # One module in bf16 can be sensitive, the sum of two modules cannot.
    lasting = [bound_for(BF16, 1, modules).lasting(0.0) for modules in (1, 2)]
    assert [_limited_by_nature(part) for part in lasting] == [False, True]
    assert not _limited_by_nature(bound_for(FP16, 1, 100).lasting(0.0))


def _limited_by_nature(lasting):
    return bool(why_by_nature(lasting, Rows()))


def test_error_and_floor_add_in_squares():
    bound = bound_for(BF16, 50)
    limit = bound.limit(Distance(l2=0.002, largest=0.004, scale_error=0.0), 16)
    assert limit.l2 == pytest.approx(math.hypot(bound.k * 0.002, bound.floor))
    assert limit.largest == pytest.approx(math.hypot(bound.k * 0.004, bound.floor))


def _alike(*shape):
    """Different rows of norm 1."""
    values = np.random.default_rng(0).standard_normal(shape)
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        (_alike(6, 5), 6),
        (np.array([1.0, -1.0]), 2),
        (np.array(3.0), 1),
        (np.diag([2.0, 0.0, 0.0]), 1),
        (_alike(2, 3, 4), 6),
        (np.ones((2, 3, 4)), 1),
        (np.zeros((2, 3)), 0),
        (_alike(6, 5) * 1e-300, 6),
    ],
    ids=["alike", "one axis", "scalar", "one row", "three axes", "equal", "zero", "tiny"],
)
def test_carrying_rows(values, rows):
    assert carrying_rows(values, np.ones(values.shape, bool)).count == pytest.approx(rows)


def test_only_rows_that_count_carry():
    counted = np.ones((6, 5), bool)
    counted[4:] = False
    assert carrying_rows(_alike(6, 5), counted).count == pytest.approx(4)


@pytest.mark.parametrize("precision", [FP32, FP16, BF16], ids=lambda p: p.name)
def test_the_min_detectable_error_is_where_the_verdict_changes(precision):
    exact = torch.randn(64, 48, generator=torch.Generator().manual_seed(5)).double()
    rounded = exact.to(precision.dtype)
    verdict = judge(exact, rounded, rounded, precision, longest_sum=1)
    truth = Oracle(exact.numpy().ravel())
    values = rounded.double().numpy().ravel()
    below, above = verdict.min_detectable_error / 1.01**2, verdict.min_detectable_error
    assert truth.distance(values * (1 + above)).exceeds(verdict.limit)
    assert truth.distance(values * (1 - above)).exceeds(verdict.limit)
    detected = [truth.distance(values * (1 + sign * below)).exceeds(verdict.limit) for sign in (1, -1)]
    assert not all(detected)
    assert 0.5 < verdict.min_detectable_error / precision.unit_roundoff < 2


@pytest.mark.parametrize("measure", ["l2", "largest", "scale_error"])
@pytest.mark.parametrize("room", [1.0 + 1e-6, 3.0, 1e3], ids=lambda room: f"{room:g} times the error")
def test_the_min_detectable_error_is_where_the_first_measure_exceeds_its_limit(measure, room):
    """A port with an error of its own, and one limit closer than the others."""
    rng = np.random.default_rng(11)
    truth = Oracle(rng.standard_normal(300))
    port = truth.values * 1.00003 + 1e-5 * rng.standard_normal(300)
    distance = truth.distance(port)
    close = {measure: room * abs(getattr(distance, measure))}
    limit = Distance(**({"l2": math.inf, "largest": math.inf, "scale_error": math.inf} | close))
    detectable = min_detectable_error(truth, port, truth.scaled(port - truth.values), limit)

    def both(error):
        return [truth.distance(port * (1 + sign * error)).exceeds(limit) for sign in (1.0, -1.0)]

    assert all(both(detectable))
    assert not all(both(detectable / 1.01**2))


def test_equality_detects_every_error_and_a_failure_has_no_number(product):
    values = torch.randn(6, 5)
    assert judge(values.double(), values, values.clone(), FP32, longest_sum=0).min_detectable_error == 0.0
    numbers = torch.arange(12)
    assert judge(numbers, numbers, numbers.clone(), FP32, longest_sum=1).min_detectable_error == 0.0
    oracle, reference, port = product
    assert math.isnan(judge(oracle, reference, port * 2, FP32, longest_sum=211).min_detectable_error)


def test_an_all_zero_tensor_detects_no_factor():
    zero = torch.zeros(4, 3)
    assert math.isinf(judge(zero.double(), zero, zero, FP32, 1).min_detectable_error)


def test_one_wrong_element_fails_in_the_max_norm(product):
    oracle, reference, port = product
    port = port.clone()
    port[7, 3] += 1e-4 * oracle.abs().max()
    verdict = judge(oracle, reference, port, FP32, longest_sum=211)
    assert not verdict.passed
    assert verdict.worst[0].index == (7, 3)
    assert verdict.worst[0].port == pytest.approx(float(port[7, 3]))


@pytest.mark.parametrize("precision", [FP32, FP16, BF16], ids=lambda p: p.name)
@pytest.mark.parametrize("terms", [1, 50, 1000])
def test_bound_is_the_derivation(precision, terms):
    u, a = precision.unit_roundoff, precision.accumulation_roundoff
    bound = bound_for(precision, terms)
    ratio = (u**2 + terms * a**2) / (u**2 + math.log2(terms + 1) * a**2)
    assert bound.k == pytest.approx(math.sqrt(ROUNDINGS_PER_OPERATION * ratio), rel=1e-12)
    assert bound.floor == pytest.approx(math.sqrt(ROUNDINGS_PER_OPERATION) * u, rel=1e-12)
    assert bound.explain().endswith("1 term" if terms == 1 else f" {terms} terms")


def test_behind_several_modules_the_floor_adds_in_squares():
    one, nine = bound_for(BF16, 50), bound_for(BF16, 50, modules=9)
    assert nine.floor == pytest.approx(3 * one.floor)
    assert nine.k == one.k
    assert bound_for(BF16, 0, modules=9).floor == 0.0


def test_half_precision_products_are_bounded_by_storage_not_by_length():
    assert bound_for(BF16, 1000).k == pytest.approx(bound_for(BF16, 1).k, rel=1e-3)
    assert bound_for(FP32, 1000).k > 5 * bound_for(FP32, 1).k


def test_moving_data_must_be_exact():
    values = torch.randn(6, 5)
    assert judge(values.double(), values, values.clone(), FP32, longest_sum=0).passed
    off = values.clone()
    off[2, 2] = torch.nextafter(off[2, 2], torch.tensor(math.inf))
    verdict = judge(values.double(), values, off, FP32, longest_sum=0)
    assert not verdict.passed
    assert math.isinf(verdict.margin)


def test_integers_must_be_equal():
    values = torch.arange(12).reshape(3, 4)
    assert judge(values, values, values.clone(), FP32, longest_sum=1).passed
    off = values.clone()
    off[1, 1] += 1
    verdict = judge(values, values, off, FP32, longest_sum=1)
    assert not verdict.passed
    assert "1 of 12" in verdict.reason
    assert verdict.worst[0].index == (1, 1)


def test_integers_of_another_type_are_compared_by_value_first():
    values = torch.arange(4)
    equal = judge(values, values, values.int(), FP32, longest_sum=1)
    assert equal.reason == f"dtype torch.int32 differs from the reference's torch.int64, {EQUAL_VALUES}"
    assert not equal.passed
    off = judge(values, values, values.int() + 1, FP32, longest_sum=1)
    assert off.reason == "4 of 4 integers or booleans differ from the oracle"
    booleans = judge(values > 1, values > 1, (values > 1).int(), FP32, longest_sum=1)
    assert booleans.reason == "dtype torch.int32 differs from the reference's torch.bool"


def test_a_reference_that_is_wrong_in_integers_fails():
    values = torch.arange(4)
    assert not judge(values, values + 1, values, FP32, longest_sum=1).passed


@pytest.mark.parametrize(
    ("port", "reason"),
    [
        (torch.ones(2, 3), "shape"),
        (torch.ones(3, 2, dtype=torch.float64), "dtype"),
        (torch.ones(3, 2, dtype=torch.int32), "dtype"),
    ],
    ids=["shape", "wider", "integer"],
)
def test_another_shape_or_type_fails(port, reason):
    one = torch.ones(3, 2)
    verdict = judge(one.double(), one, port, FP32, longest_sum=1)
    assert not verdict.passed
    assert reason in verdict.reason


def test_nothing_to_compare_fails():
    empty = torch.ones(0, 4)
    assert not judge(empty.double(), empty, empty, FP32, longest_sum=1).passed
    one = torch.ones(2, 2)
    masked = judge(one.double(), one, one, FP32, longest_sum=1, valid=np.zeros((2, 2), bool))
    assert not masked.passed
    assert "nothing to compare" in masked.reason


def test_only_valid_elements_count():
    oracle = torch.ones(2, 3).double()
    port = torch.ones(2, 3)
    port[1, 2] = math.nan
    valid = np.ones((2, 3), bool)
    valid[1, 2] = False
    assert judge(oracle, torch.ones(2, 3), port, FP32, 1, valid=valid).passed
    assert not judge(oracle, torch.ones(2, 3), port, FP32, 1).passed


def test_boundary_elements_are_counted_and_left_out():
    oracle = torch.ones(2, 3).double()
    port = torch.ones(2, 3)
    port[0, 0] = 2.0
    boundary = np.zeros((2, 3), bool)
    boundary[0, 0] = True
    verdict = judge(oracle, torch.ones(2, 3), port, FP32, 1, boundary=boundary)
    assert verdict.passed
    assert (verdict.boundary, verdict.checked) == (1, 5)


def test_an_all_zero_oracle_accepts_only_zero():
    zero = torch.zeros(4)
    assert judge(zero.double(), zero, zero, FP32, 1).passed
    assert not judge(zero.double(), zero, zero + 1e-30, FP32, 1).passed


@pytest.mark.parametrize("shape", [(), (1,), (4, 3)])
def test_an_all_zero_oracle_with_a_rounded_reference_accepts_as_much_as_rounding_explains(shape):
    """Such as the loss of one row, which is the difference of equal numbers."""
    reference = 1e-8 * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    oracle = torch.zeros(shape, dtype=torch.float64)
    near = judge(oracle, reference, -reference, FP32, 1)
    assert near.passed
    assert (near.reference.l2, near.port.largest, near.port.scale_error) == (1.0, 1.0, 0.0)
    assert math.isfinite(near.margin)
    assert math.isinf(near.min_detectable_error)
    assert judge(oracle, reference, torch.zeros(shape), FP32, 1).passed
    far = judge(oracle, reference, torch.full(shape, 0.1), FP32, 1)
    assert not far.passed
    limit = far.limit.largest * float(reference.abs().max())
    assert not judge(oracle, reference, torch.full(shape, 1.01 * limit), FP32, 1).passed


def test_a_result_of_zeros_has_the_limit_of_one_row():
    zero = torch.zeros(4, 3)
    verdict = judge(zero.double(), zero, zero, FP32, 1)
    assert verdict.limit == bound_for(FP32, 1).limit(Distance(0.0, 0.0, 0.0), 1)
    assert verdict.rows == Rows(4, 4, 0.0)


def test_a_verdict_counts_its_rows_and_those_that_carry_the_result():
    values = torch.from_numpy(_alike(6, 5)).float()
    valid = np.ones((6, 5), bool)
    valid[5] = False
    verdict = judge(values.double(), values, values, FP32, 1, valid=valid, by_row=True)
    assert (verdict.rows.first, verdict.rows.most) == (5, 5)
    assert verdict.rows.carrying == pytest.approx(5)
    assert verdict.row_errors.rows == 5


@pytest.mark.parametrize("error", [0.0, 2.0**-12, math.nextafter(2.0**-12, 1.0), math.inf, math.nan])
def test_an_error_beyond_half_of_the_digits_or_without_a_number_is_rarely_rounding(error):
    own = replace(failure("larger", bound_for(FP32, 1)), port=Distance(error, error, 0.0))
    assert own.loses_half_of_digits == (error not in (0.0, 2.0**-12))


def test_scalars_have_an_empty_index():
    one = torch.tensor(1.0)
    verdict = judge(one.double(), one, torch.tensor(2.0), FP32, 1)
    assert not verdict.passed
    assert verdict.worst[0].index == ()


def test_the_largest_absolute_element_may_be_negative_and_is_no_negative_zero():
    assert largest_absolute(np.array([1.0, -3.0, 2.0])) == 3.0
    assert math.copysign(1.0, largest_absolute(np.array([-0.0, 0.0]))) == 1.0
