"""Metrics of candidates: against the public program's results, formulas by hand, and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from parity.base.precision import PRECISIONS
from parity.verdict.task_metrics.candidates import (
    ACCURACY,
    AUC,
    CALIBRATION,
    CALIBRATION_ERROR,
    NORMALIZED_ENTROPY,
    Candidates,
    predictions_of,
    reordered_requests,
)
from parity.verdict.task_metrics.evaluation import Evaluation

TASK = Candidates("forward.predictions")
OVER = {metric.name: metric.over for metric in TASK.metrics}
UNDEFINED = {metric.name: metric.undefined for metric in TASK.metrics}
PUBLIC = {NORMALIZED_ENTROPY: 0.9444382559347008, ACCURACY: 0.6824644549763034, AUC: 0.8537931838971947}
"""Results of torchrec's functions on `requests(0)`."""


def requests(seed: int, count: int = 40, width: int = 9) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Predictions and labels. Of the first four requests one has clicks alone, one has none, one has equal
    predictions, and one has one candidate.
    """
    rng = np.random.default_rng(seed)
    clicks = rng.integers(0, 2, (count, width))
    p = (0.3 * clicks + 0.7 * rng.random((count, width)))[..., None]
    lengths = rng.integers(2, width + 1, count)
    clicks[0], clicks[1], p[2], lengths[3] = 1, 0, 0.625, 1
    p[4, 0], p[4, 1] = 0.0, 1.0
    clicks[np.arange(width) >= lengths[:, None]] = -1
    return p, {"clicks": clicks, "requests": 7 * np.arange(count)}


def rows(p: np.ndarray, labels: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return TASK.rows(p, labels, {}), TASK.truth(labels)


@pytest.mark.parametrize("name", PUBLIC)
def test_numbers_are_the_public_program_s(name):
    assert float(OVER[name](*rows(*requests(0)))) == pytest.approx(PUBLIC[name], rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_auc_is_the_mean_over_requests_that_have_one(seed):
    p, labels = requests(seed)
    p = np.round(p, 1)
    single = []
    for p_T, y_T in zip(p[..., 0], labels["clicks"], strict=True):
        p_t, y_t = p_T[y_T >= 0], y_T[y_T >= 0]
        if len(set(y_t)) == 2 and len(set(p_t)) > 1:
            single.append(roc_auc_score(y_t, p_t))
    assert len(single) < len(p) - 3
    assert float(OVER[AUC](*rows(p, labels))) == pytest.approx(np.mean(single), rel=1e-12)


def test_the_others_by_hand():
    p = np.array([[[0.9], [0.2], [0.5]], [[0.25], [0.7], [0.1]]])
    labels = {"clicks": np.array([[1, 0, 0], [1, 1, -1]]), "requests": np.array([5, 2])}
    loss = -np.log([0.9, 0.8, 0.5, 0.25, 0.7]).mean()
    entropy = -(0.6 * np.log(0.6) + 0.4 * np.log(0.4))
    values = {name: float(over(*rows(p, labels))) for name, over in OVER.items()}
    assert values == pytest.approx(
        {
            NORMALIZED_ENTROPY: loss / entropy,
            ACCURACY: 3 / 5,
            AUC: 1.0,
            CALIBRATION: 2.55 / 3,
            # 0.2 and 0.25 share a bin.
            CALIBRATION_ERROR: (0.1 + (0.75 - 0.2) + 0.5 + 0.3) / 5,
        },
        rel=1e-12,
    )


def test_errors_of_calibration_cancel_within_a_bin():
    labels = {"clicks": np.array([[1, 0, 0, 1]]), "requests": np.array([0])}
    p = np.array([[0.52, 0.56, 0.31, 1.0]])[..., None]
    expected = (abs(0.52 + 0.56 - 1) + 0.31) / 4
    assert float(OVER[CALIBRATION_ERROR](*rows(p, labels))) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", OVER)
def test_resamples_at_once_are_the_resamples_one_by_one(name):
    p_n, truth_n = rows(*requests(1))
    index = np.random.default_rng(0).integers(0, p_n.size, (6, p_n.size))
    single = [float(OVER[name](p_n[row], truth_n[row])) for row in index]
    assert OVER[name](p_n[index], truth_n[index]) == pytest.approx(single, rel=1e-12)


def test_a_number_outside_of_0_to_1_is_no_probability():
    p, labels = requests(0)
    p[5, 0] = 1.25
    p_n, _ = rows(p, labels)
    assert np.isnan(p_n).sum() == 1
    assert predictions_of(p, labels).max() == 1.25
    assert TASK.nearest(np.array([-1.0, 0.5, 2.0])).tolist() == [0.0, 0.5, 1.0]


def test_labels_without_a_pair_have_no_auc():
    truth = TASK.truth({"clicks": np.array([[1, 1], [0, -1]]), "requests": np.array([0, 1])})
    assert UNDEFINED[AUC](truth) == "none of 2 requests has a click and a candidate without one"
    assert np.isnan(OVER[AUC](np.array([0.1, 0.2, 0.3]), truth))
    assert not UNDEFINED[NORMALIZED_ENTROPY](truth)
    assert UNDEFINED[NORMALIZED_ENTROPY](truth[:2]) == "all 2 labels are 1"
    assert np.isnan(OVER[NORMALIZED_ENTROPY](np.array([0.1, 0.2]), truth[:2]))
    assert UNDEFINED[CALIBRATION](truth[2:]) == "all 1 labels are 0"


def test_an_order_counts_beyond_the_gap():
    expected = np.array([[0.1, 0.2, 0.9], [0.5, 0.5, 0.5], [0.3, 0.4, 0.0]])
    actual = np.array([[0.2, 0.1, 0.9], [0.3, 0.2, 0.1], [0.3, 0.4, 0.5]])
    everywhere = np.ones(expected.shape, bool)
    without_last = everywhere & [True, True, False]
    assert reordered_requests(expected, actual, everywhere, 0.05) == 2
    assert reordered_requests(expected, actual, everywhere, 0.15) == 1
    assert reordered_requests(expected, actual, without_last, 0.15) == 0
    assert reordered_requests(expected, np.full_like(expected, np.nan), everywhere, 0.15) == 2


@pytest.mark.parametrize(
    ("factor", "flagged"), [(1.0, set()), (3.0, {NORMALIZED_ENTROPY, CALIBRATION_ERROR})]
)
def test_logits_that_are_too_large_move_two_metrics(factor, flagged):
    p, labels = requests(2, 200)
    p = p.clip(0.02, 0.98)
    evaluation = Evaluation(TASK, PRECISIONS["fp32"])
    port = 1.0 / (1.0 + ((1.0 - p) / p) ** factor)
    evaluation.add_outputs({"torch": p, "oracle": p, "port": port}, labels, {}, 10)
    judged = evaluation.judge("port")
    assert {one.name for one in judged if one.values is not None and one.values.flagged} == flagged


@pytest.mark.parametrize(("gap", "count"), [(0.25, 0), (0.125, 1)])
def test_an_exchange_of_candidates_counts_beyond_the_least_gap(gap, count):
    """Candidates that become equal are exchanged as well."""
    expected, valid = np.array([[0.25, 0.5]]), np.ones((1, 2), bool)
    for actual in ([[0.5, 0.25]], [[0.375, 0.375]]):
        assert reordered_requests(expected, np.array(actual), valid, gap) == count
    assert reordered_requests(expected, expected, valid, 0.0) == 0


def test_candidates_of_another_number_of_requests_are_an_error():
    two, one = np.zeros((2, 3)), np.ones((1, 3), bool)
    for sides in ((two, two[:1], one), (two, two, one), (two[:1], two, one)):
        with pytest.raises(ValueError, match="zip"):
            reordered_requests(*sides, 0.0)


def test_the_last_bin_holds_probabilities_from_nine_tenths_to_one():
    p, truth = np.array([0.875, 0.9375, 1.0]), np.array([1, 1, 0])
    # Of the last bin, 1.9375 are expected and one click is there.
    assert OVER[CALIBRATION_ERROR](p, truth) == pytest.approx((0.125 + 0.9375) / 3)


def test_each_sample_has_its_own_entropy():
    p, truth = np.full((2, 2), 0.5), np.array([[1, 0], [1, 1]])
    entropy = OVER[NORMALIZED_ENTROPY](p, truth)
    assert entropy[0] == pytest.approx(1.0)
    assert np.isnan(entropy[1])
    assert np.isnan(OVER[NORMALIZED_ENTROPY](p, 1 - truth)[1])


def test_a_task_has_an_output_and_five_metrics():
    task = Candidates("forward.scores")
    assert task.output == "forward.scores"
    p, truth = np.array([0.9, 0.2, 0.6]), np.array([7, 6, 6])
    entropy = -(np.log(1 / 3) + 2 * np.log(2 / 3)) / 3
    assert {metric.name: float(metric.over(p, truth)) for metric in task.metrics} == pytest.approx(
        {
            NORMALIZED_ENTROPY: -np.log([0.9, 0.8, 0.4]).mean() / entropy,
            ACCURACY: 2 / 3,
            AUC: 1.0,
            CALIBRATION: 1.7,
            CALIBRATION_ERROR: (0.1 + 0.2 + 0.6) / 3,
        }
    )
    reasons = {metric.name: metric.undefined(np.array([2, 6])) for metric in task.metrics}
    assert {name: reason for name, reason in reasons.items() if reason} == {
        NORMALIZED_ENTROPY: "all 2 labels are 0",
        AUC: "none of 2 requests has a click and a candidate without one",
        CALIBRATION: "all 2 labels are 0",
    }


def test_labels_that_a_metric_needs_give_no_reason():
    pair = np.array([3, 2])
    assert [UNDEFINED[name](pair) for name in (NORMALIZED_ENTROPY, AUC, CALIBRATION)] == ["", "", ""]
    assert UNDEFINED[NORMALIZED_ENTROPY](np.array([1])) == "all 1 labels are 1"
    assert UNDEFINED[AUC](np.array([3, 4])) == "none of 2 requests has a click and a candidate without one"


def test_empty_bins_count_nothing():
    p, truth = np.array([0.05, 0.15]), np.array([0, 1])
    assert OVER[CALIBRATION_ERROR](p, truth) == pytest.approx((0.05 + 0.85) / 2)


def test_a_sample_without_the_last_request_has_an_auc():
    p, truth = np.array([[0.2, 0.9, 0.7], [0.7, 0.2, 0.9]]), np.array([[0, 1, 3], [0, 1, 0]])
    assert OVER[AUC](p, truth).tolist() == [1.0, 0.0]
