"""Patterns of failure: each is put into words when it is there, and only then."""

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.verdict.distances import Distance
from parity.verdict.patterns import Found, explain
from parity.verdict.rule import judge

BATCH, LENGTH, WIDTH = 5, 7, 7
LENGTHS = [7, 3, 5, 7, 4]


@pytest.fixture
def oracle():
    return np.random.default_rng(11).normal(size=(BATCH, LENGTH, WIDTH))


@pytest.fixture
def keep():
    """Rows of five lengths; what lies behind them does not count."""
    rows = np.arange(LENGTH)[None, :] < np.array(LENGTHS)[:, None]
    return np.broadcast_to(rows[:, :, None], (BATCH, LENGTH, WIDTH)).copy()


@pytest.fixture
def everything():
    return np.ones((BATCH, LENGTH, WIDTH), bool)


def _explained(oracle, port, keep, precision="fp32"):
    """What is said of a port's float64 result, once rounded to the precision."""
    rounding = PRECISIONS[precision].dtype
    given = torch.from_numpy(port).to(rounding)
    exact = torch.from_numpy(oracle)
    verdict = judge(exact, exact.to(rounding), given, PRECISIONS[precision], 8, keep)
    assert not verdict.passed
    axes = [f"axis {axis}" for axis in range(oracle.ndim)]
    return explain(Found(oracle, given.double().numpy(), keep, verdict.limit, axes, rounding))


def _poisoned(port, keep):
    """Garbage where nothing counts: no explanation may rest on it."""
    return np.where(keep, port, 1e3)


def test_a_factor_and_its_fraction(oracle, keep):
    (said,) = _explained(oracle, _poisoned(oracle * 200 / 211, keep), keep)
    assert said == "equals the oracle times 0.947867, which is 200/211 to round-off"
    (said,) = _explained(oracle, -oracle, keep)
    assert said == "equals the oracle times -1"


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_factor_in_every_precision(oracle, keep, precision):
    (said,) = _explained(oracle, oracle * 1.5, keep, precision)
    assert said.startswith("equals the oracle times 1.5") or said.endswith("which is 3/2 to round-off")


def test_all_zero(oracle, keep):
    assert _explained(oracle, oracle * 0, keep) == ["is zero everywhere"]


def test_a_transpose(oracle, everything):
    (said,) = _explained(oracle, oracle.swapaxes(1, 2), everything)
    assert said == "equals the oracle after transposing axis 1 and axis 2"


@pytest.mark.parametrize("step", [1, -1, 2])
def test_a_shift_along_the_sequence(oracle, keep, step):
    (said,) = _explained(oracle, np.roll(oracle, step, 1), keep)
    assert said == f"equals the oracle shifted by {step:+d} along axis 1"


def test_two_rows_swapped_of_the_last_axis(oracle, keep):
    order = [0, 4, 2, 3, 1, 5, 6]
    (said,) = _explained(oracle, _poisoned(oracle[:, :, order], keep), keep)
    assert said == "equals the oracle with axis 2 permuted: 4 at 1, 1 at 4"


def test_a_reversed_batch(oracle, everything):
    (said,) = _explained(oracle, oracle[::-1].copy(), everything)
    assert said == "equals the oracle with axis 0 permuted: 4 at 0, 3 at 1, 1 at 3, 0 at 4"


def test_a_divisor_for_each_row(oracle, keep):
    port = oracle * 8 / np.array(LENGTHS)[:, None, None]
    (said,) = _explained(oracle, _poisoned(port, keep), keep)
    assert said == (
        "equals the oracle times a factor for each index of axis 0: 1.143, 2.667, 1.6, 1.143, ..."
    )


def test_an_offset(oracle, keep):
    (said,) = _explained(oracle, _poisoned(oracle + 0.25, keep), keep)
    assert said.startswith("equals the oracle plus 0.25")


def test_a_missing_bias(oracle, keep):
    bias = np.arange(1.0, WIDTH + 1)
    (said,) = _explained(oracle, _poisoned(oracle - bias, keep), keep)
    assert said == "equals the oracle plus an offset for each index of axis 2: -1, -2, -3, -4, ..."


def test_a_premature_cast(oracle, keep):
    port = torch.from_numpy(oracle).bfloat16().double().numpy()
    assert _explained(oracle, port, keep) == ["holds only bfloat16 values: rounded to bfloat16 on the way"]


def test_a_mask_without_its_diagonal(oracle, everything):
    port = oracle.copy()
    port[:, np.arange(LENGTH), np.arange(LENGTH)] = 0
    (said,) = _explained(oracle, port, everything)
    assert said == "35 of 245 wrong elements are zero, all on the diagonal of axis 1 and axis 2"


TRIANGLE = np.broadcast_to(np.tril(np.ones((LENGTH, LENGTH))), (BATCH, LENGTH, LENGTH)).copy()


def test_the_diagonal_of_a_mask_is_no_shift(everything):
    """Of a triangle the two are the same tensor."""
    (said,) = _explained(TRIANGLE, np.tril(TRIANGLE, -1), everything)
    assert said == "35 of the mask's 140 ones are zero, all on the diagonal of axis 1 and axis 2"


def test_a_mask_that_sees_one_step_too_far(everything):
    (said,) = _explained(TRIANGLE, np.tril(np.ones_like(TRIANGLE), 1), everything)
    assert said == "30 of the mask's 105 zeros are one, all 1 above the diagonal of axis 1 and axis 2"


def test_a_mask_that_hides_and_shows(everything):
    port = TRIANGLE.copy()
    port[2, 5, 0], port[3, 0, 4] = 0.0, 1.0
    said = _explained(TRIANGLE, port, everything)
    assert [words.split(",")[0] for words in said] == [
        "1 of the mask's 140 ones are zero",
        "1 of the mask's 105 zeros are one",
    ]
    assert "all at axis 0 2; at axis 1 5; at axis 2 0; below the diagonal" in said[0]
    assert "all at axis 0 3; at axis 1 0; at axis 2 4; above the diagonal" in said[1]


def test_a_mask_the_other_way_round(everything):
    assert _explained(TRIANGLE, 1.0 - TRIANGLE, everything) == [
        "is the oracle's mask with zeros and ones exchanged"
    ]


def test_what_is_coarse_in_the_oracle_was_not_rounded(everything):
    oracle = np.random.default_rng(4).integers(-8, 8, size=(BATCH, LENGTH, WIDTH)).astype(float)
    port = oracle.copy()
    port[1, 2, 3] += 1.0
    (said,) = _explained(oracle, port, everything)
    assert said.startswith("1 of 245 wrong elements")


def test_one_row_of_the_batch(oracle, keep):
    port = oracle.copy()
    port[3] = np.random.default_rng(12).normal(size=(LENGTH, WIDTH))
    (said,) = _explained(oracle, port, keep)
    assert said == "49 of 182 wrong elements, all at axis 0 3"


def test_another_result_altogether_is_not_explained(oracle, keep):
    port = np.random.default_rng(12).normal(size=oracle.shape)
    assert _explained(oracle, port, keep) == []


def test_non_finite_results_are_not_explained(oracle, keep):
    limit = Distance(1e-6, 1e-6, 1e-6)
    found = Found(oracle, oracle * np.inf, keep, limit, ["a", "b", "c"], torch.float32)
    assert explain(found) == []


def test_integers(keep):
    oracle = np.random.default_rng(3).integers(0, 50, size=(6, 9)).astype(float)
    limit = Distance(0.0, 0.0, 0.0)
    found = Found(oracle, oracle + 1, np.ones((6, 9), bool), limit, ["rows", "columns"], torch.int64)
    assert explain(found) == ["equals the oracle plus 1"]
