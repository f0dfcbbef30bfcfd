"""Patterns of failure: each is put into words when it is there, and only then."""

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.verdict.distances import Distance
from parity.verdict.patterns import FailedTensor, explain
from parity.verdict.rule import judge

BATCH, LENGTH, WIDTH = 5, 7, 7
LENGTHS = [7, 3, 5, 7, 4]


@pytest.fixture
def oracle():
    return np.random.default_rng(11).normal(size=(BATCH, LENGTH, WIDTH))


@pytest.fixture
def counted():
    """Mask of rows of five lengths."""
    rows = np.arange(LENGTH)[None, :] < np.array(LENGTHS)[:, None]
    return np.broadcast_to(rows[:, :, None], (BATCH, LENGTH, WIDTH)).copy()


@pytest.fixture
def everything():
    return np.ones((BATCH, LENGTH, WIDTH), bool)


def test_wrong_elements_are_above_the_limit_of_the_largest_error():
    oracle = np.array([1e-3, -1e-3, 5e-4, 0.0])
    port = oracle + np.array([1e-4, 0.0, 2e-4, 0.0])
    everything, axes = np.ones(4, bool), ["axis 0"]

    def wrong(largest):
        limit = Distance(largest, largest, largest)
        return FailedTensor(oracle, port, everything, limit, axes, torch.float32).wrong.tolist()

    assert wrong(0.05) == [True, False, True, False]
    assert wrong(0.15) == [False, False, True, False]
    # Without an allowed error, an equal element is right.
    assert wrong(0.0) == [True, False, True, False]


def _explained(oracle, port, counted, precision="fp32"):
    """The explanation of a port's float64 result, rounded to the precision."""
    rounding = PRECISIONS[precision].dtype
    rounded = torch.from_numpy(port).to(rounding)
    exact = torch.from_numpy(oracle)
    verdict = judge(exact, exact.to(rounding), rounded, PRECISIONS[precision], 8, counted)
    assert not verdict.passed
    axes = [f"axis {axis}" for axis in range(oracle.ndim)]
    return explain(FailedTensor(oracle, rounded.double().numpy(), counted, verdict.limit, axes, rounding))


def _poisoned(port, counted):
    """Garbage in masked elements, which no explanation may use."""
    return np.where(counted, port, 1e3)


def test_a_factor_and_its_fraction(oracle, counted):
    (text,) = _explained(oracle, _poisoned(oracle * 200 / 211, counted), counted)
    assert text == "equals the oracle times 0.947867, which is 200/211 to round-off"
    (text,) = _explained(oracle, -oracle, counted)
    assert text == "equals the oracle times -1"


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_factor_in_every_precision(oracle, counted, precision):
    (text,) = _explained(oracle, oracle * 1.5, counted, precision)
    assert text.startswith("equals the oracle times 1.5") or text.endswith("which is 3/2 to round-off")


def test_all_zero(oracle, counted):
    assert _explained(oracle, oracle * 0, counted) == ["is zero everywhere"]


def test_a_transpose(oracle, everything):
    (text,) = _explained(oracle, oracle.swapaxes(1, 2), everything)
    assert text == "equals the oracle after transposing axis 1 and axis 2"


@pytest.mark.parametrize("step", [1, -1, 2])
def test_a_shift_along_the_sequence(oracle, counted, step):
    (text,) = _explained(oracle, np.roll(oracle, step, 1), counted)
    assert text == f"equals the oracle shifted by {step:+d} along axis 1"


def test_two_rows_swapped_of_the_last_axis(oracle, counted):
    order = [0, 4, 2, 3, 1, 5, 6]
    (text,) = _explained(oracle, _poisoned(oracle[:, :, order], counted), counted)
    assert text == "equals the oracle with axis 2 permuted: 4 at 1, 1 at 4"


def test_a_reversed_batch(oracle, everything):
    (text,) = _explained(oracle, oracle[::-1].copy(), everything)
    assert text == "equals the oracle with axis 0 permuted: 4 at 0, 3 at 1, 1 at 3, 0 at 4"


def test_a_divisor_for_each_row(oracle, counted):
    port = oracle * 8 / np.array(LENGTHS)[:, None, None]
    (text,) = _explained(oracle, _poisoned(port, counted), counted)
    assert text == (
        "equals the oracle times a factor for each index of axis 0: 1.143, 2.667, 1.6, 1.143, ..."
    )


def test_an_offset(oracle, counted):
    (text,) = _explained(oracle, _poisoned(oracle + 0.25, counted), counted)
    assert text.startswith("equals the oracle plus 0.25")


def test_a_missing_bias(oracle, counted):
    bias = np.arange(1.0, WIDTH + 1)
    (text,) = _explained(oracle, _poisoned(oracle - bias, counted), counted)
    assert text == "equals the oracle plus an offset for each index of axis 2: -1, -2, -3, -4, ..."


def test_a_premature_cast(oracle, counted):
    port = torch.from_numpy(oracle).bfloat16().double().numpy()
    assert _explained(oracle, port, counted) == ["holds only bfloat16 values: rounded to bfloat16 on the way"]


def test_a_mask_without_its_diagonal(oracle, everything):
    port = oracle.copy()
    port[:, np.arange(LENGTH), np.arange(LENGTH)] = 0
    (text,) = _explained(oracle, port, everything)
    assert (
        text == "35 of 245 wrong elements are zero, all on the diagonal (equal indices of axis 1 and axis 2)"
    )


TRIANGLE = np.broadcast_to(np.tril(np.ones((LENGTH, LENGTH))), (BATCH, LENGTH, LENGTH)).copy()


def test_the_diagonal_of_a_mask_is_no_shift(everything):
    """Of a triangle the two are the same tensor."""
    (text,) = _explained(TRIANGLE, np.tril(TRIANGLE, -1), everything)
    assert (
        text == "35 of the mask's 140 ones are zero, all on the diagonal (equal indices of axis 1 and axis 2)"
    )


def test_a_mask_that_sees_one_step_too_far(everything):
    (text,) = _explained(TRIANGLE, np.tril(np.ones_like(TRIANGLE), 1), everything)
    where = "1 above the diagonal (indices of axis 2 larger by 1 than of axis 1)"
    assert text == f"30 of the mask's 105 zeros are one, all {where}"


def test_a_mask_that_hides_and_shows(everything):
    port = TRIANGLE.copy()
    port[2, 5, 0], port[3, 0, 4] = 0.0, 1.0
    text = _explained(TRIANGLE, port, everything)
    assert [words.split(",")[0] for words in text] == [
        "1 of the mask's 140 ones are zero",
        "1 of the mask's 105 zeros are one",
    ]
    assert "all at axis 0 2; at axis 1 5; at axis 2 0; below the diagonal" in text[0]
    assert "all at axis 0 3; at axis 1 0; at axis 2 4; above the diagonal" in text[1]


def test_a_mask_the_other_way_round(everything):
    assert _explained(TRIANGLE, 1.0 - TRIANGLE, everything) == [
        "is the oracle's mask with zeros and ones exchanged"
    ]


def test_what_is_coarse_in_the_oracle_was_not_rounded(everything):
    oracle = np.random.default_rng(4).integers(-8, 8, size=(BATCH, LENGTH, WIDTH)).astype(float)
    port = oracle.copy()
    port[1, 2, 3] += 1.0
    (text,) = _explained(oracle, port, everything)
    assert text.startswith("1 of 245 wrong elements")


def test_one_row_of_the_batch(oracle, counted):
    port = oracle.copy()
    port[3] = np.random.default_rng(12).normal(size=(LENGTH, WIDTH))
    (text,) = _explained(oracle, port, counted)
    assert text == "49 of 182 wrong elements, all at axis 0 3"


def test_another_result_altogether_is_not_explained(oracle, counted):
    port = np.random.default_rng(12).normal(size=oracle.shape)
    assert _explained(oracle, port, counted) == []


def test_non_finite_results_are_not_explained(oracle, counted):
    assert _explained(oracle, oracle * np.inf, counted) == []
    assert _explained(np.where(oracle > 0, oracle, np.nan), oracle, counted) == []


@pytest.mark.parametrize(("value", "words"), [(np.nan, " are NaN"), (-np.inf, " are infinite"), (7.0, "")])
def test_places_of_wrong_numbers_of_one_kind(oracle, counted, value, words):
    port = oracle.copy()
    port[3] = value
    (text,) = _explained(oracle, port, counted)
    assert text == f"49 of 182 wrong elements{words}, all at axis 0 3"


def test_places_of_nan_beside_other_wrong_numbers(oracle, counted):
    port = oracle.copy()
    port[3, 0, 0], port[3, 0, 1] = np.nan, 7.0
    (text,) = _explained(oracle, port, counted)
    assert text.startswith("2 of 182 wrong elements, all at axis 0 3")


def test_masked_logits_are_explained_by_the_others(oracle, counted):
    oracle[:, 0] = -np.inf
    assert _explained(oracle, 3 * oracle, counted) == ["equals the oracle times 3"]


def test_integers(counted):
    oracle = np.random.default_rng(3).integers(0, 50, size=(6, 9)).astype(float)
    limit = Distance(0.0, 0.0, 0.0)
    actual = FailedTensor(oracle, oracle + 1, np.ones((6, 9), bool), limit, ["rows", "columns"], torch.int64)
    assert explain(actual) == ["equals the oracle plus 1"]
