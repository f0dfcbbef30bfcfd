"""Task metrics: each against values by hand and an independent formula, and where there is no value."""

import itertools
import math

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.verdict.task_metrics.clicks import Clicks
from parity.verdict.task_metrics.ranking import CUTOFFS, Ranking

FP32, FP16, BF16 = (PRECISIONS[name] for name in ("fp32", "fp16", "bf16"))


def _metrics(task):
    return {metric.name: metric for metric in task.metrics}


def test_ranks_of_resamples_at_once_are_those_one_by_one():
    ranks = np.random.default_rng(1).integers(1, 300, (20, 50))
    ranks[0] = 1
    task = Ranking("score.current", np.eye(3))
    for metric in task.metrics:
        expected = [float(metric.over(row, row)) for row in ranks]
        assert metric.over(ranks, ranks) == pytest.approx(expected, rel=1e-12)
    assert task.output == "score.current"
    labels = {"targets": np.array([2, 1])}
    assert task.truth(labels) is labels["targets"]


@pytest.fixture
def clicks():
    return Clicks("predict.click", FP32)


class TestClicks:
    P = np.array([0.9, 0.2, 0.6, 0.3])
    Y = np.array([1, 0, 0, 1])

    def test_log_loss_by_hand(self, clicks):
        expected = -(math.log(0.9) + math.log(0.8) + math.log(0.4) + math.log(0.3)) / 4
        assert float(_metrics(clicks)["log loss"].over(self.P, self.Y)) == pytest.approx(expected, rel=1e-12)

    def test_auc_by_hand(self, clicks):
        # Of the four pairs (0.9, 0.3) x (0.2, 0.6) three are in order.
        assert float(_metrics(clicks)["AUC"].over(self.P, self.Y)) == 0.75

    def test_normalized_entropy_of_the_base_rate_is_one(self, clicks):
        y = np.array([1, 0, 0, 0])
        actual = _metrics(clicks)["normalized entropy"]
        assert float(actual.over(np.full(4, 0.25), y)) == pytest.approx(1.0, rel=1e-12)
        # Half of the log loss in bits, as the entropy of two equal classes is one bit.
        expected = -(math.log2(0.9) + math.log2(0.8) + math.log2(0.4) + math.log2(0.3)) / 4
        assert float(actual.over(self.P, self.Y)) == pytest.approx(expected, rel=1e-12)

    def test_calibration_by_hand(self, clicks):
        assert float(_metrics(clicks)["calibration"].over(self.P, self.Y)) == pytest.approx(2.0 / 2.0)
        assert float(_metrics(clicks)["calibration"].over(self.P / 2, self.Y)) == pytest.approx(0.5)

    @pytest.mark.parametrize("seed", range(5))
    def test_auc_counts_pairs_and_equal_predictions_half(self, clicks, seed):
        rng = np.random.default_rng(seed)
        p, y = rng.integers(0, 6, 60) / 5, rng.integers(0, 2, 60)
        pairs = [
            1.0 if click > other else 0.5 if click == other else 0.0
            for click, other in itertools.product(p[y == 1], p[y == 0])
        ]
        assert len(set(pairs)) == 3
        actual = _metrics(clicks)["AUC"]
        assert float(actual.over(p, y)) == pytest.approx(np.mean(pairs), rel=1e-12)
        assert actual.over(p[None], y[None])[0] == pytest.approx(np.mean(pairs), rel=1e-12)

    @pytest.mark.parametrize("name", ["log loss", "AUC", "normalized entropy", "calibration"])
    def test_resamples_at_once_are_the_resamples_one_by_one(self, clicks, name):
        rng = np.random.default_rng(1)
        p, y = rng.random(50), rng.integers(0, 2, 50)
        p[:3] = (0.0, 1.0, 0.5)
        index = rng.integers(0, 50, (20, 50))
        metric = _metrics(clicks)[name]
        assert metric.over(p[index], y[index]) == pytest.approx(
            [float(metric.over(p[row], y[row])) for row in index], rel=1e-12
        )

    @pytest.mark.parametrize("precision", [FP32, FP16, BF16], ids=lambda p: p.name)
    def test_a_stored_one_counts_as_the_furthest_value_that_rounds_to_it(self, precision):
        y = np.array([0, 1])
        actual = float(_metrics(Clicks("p", precision))["log loss"].over(np.array([1.0, 0.5]), y))
        furthest = 1.0 - math.exp(-(2 * actual - math.log(2.0)))
        rounded = torch.tensor(furthest, dtype=torch.float64).to(precision.dtype)
        further = torch.tensor(2 * furthest - 1.0, dtype=torch.float64).to(precision.dtype)
        assert rounded == 1.0
        assert further < 1.0

    def test_a_stored_zero_counts_as_scikit_learn_has_it(self, clicks):
        actual = float(_metrics(clicks)["log loss"].over(np.array([0.0, 0.5]), np.array([1, 0])))
        assert actual == pytest.approx((-math.log(np.finfo(np.float64).eps) + math.log(2.0)) / 2)

    @pytest.mark.parametrize("precision", [FP32, FP16, BF16], ids=lambda p: p.name)
    def test_the_loss_of_a_stored_one_is_that_of_half_a_spacing(self, precision):
        loss = _metrics(Clicks("p", precision))["log loss"].over(np.array([1.0, 1.0]), np.array([0, 0]))
        assert float(loss) == pytest.approx(-math.log(torch.finfo(precision.dtype).eps / 4))

    def test_the_nearest_number_to_one_counts_as_scikit_learn_has_it(self, clicks):
        p, y = np.array([1.0 - 2.0**-53, 0.5]), np.array([0, 1])
        log_loss = _metrics(clicks)["log loss"].over
        assert float(log_loss(p, y)) == pytest.approx((52 + 1) * math.log(2.0) / 2)
        assert log_loss(p[None], y[None]) == pytest.approx([float(log_loss(p, y))], rel=1e-12)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -0.1, 1.1])
    def test_what_is_no_probability_has_no_row(self, clicks, bad):
        rows = clicks.rows(np.array([[0.5], [bad], [1.0], [0.0]]), {}, {})
        assert np.array_equal(np.isnan(rows), [False, True, False, False])


# Five items in two dimensions, the first the nearest to (1, 0), the last the furthest.
ANGLES = np.radians([10, 30, 50, 70, 90])
ITEMS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1) * np.array([[1.0], [5.0], [0.1], [2.0], [3.0]])
STATE = np.array([[1.0, 0.0]])


def _rank(target, history=(), items=ITEMS, state=STATE, padding=3):
    past = np.zeros((1, len(history) + padding), dtype=np.int64)
    past[0, : len(history)] = history
    inputs = {"past_ids": past, "past_lengths": np.array([len(history)])}
    return Ranking("score.current", items).rows(state, {"targets": np.array([target])}, inputs)[0]


class TestRanking:
    def test_ranks_are_those_of_the_angles_whatever_the_norms(self):
        assert [_rank(target) for target in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 5]

    def test_history_is_filtered_out_the_target_never(self):
        # Items 1 and 2 score highest; in the history they do not count.
        assert _rank(3, history=(1, 2)) == 1
        assert _rank(3, history=(1, 2, 1)) == 1
        assert _rank(5, history=(2,)) == 4
        assert _rank(2, history=(2, 5)) == 2

    def test_what_lies_in_the_padding_is_no_history(self):
        past = np.array([[5, 1, 2]])
        inputs = {"past_ids": past, "past_lengths": np.array([1])}
        ranking = Ranking("score.current", ITEMS)
        assert ranking.rows(STATE, {"targets": np.array([3])}, inputs)[0] == 3

    def test_the_whole_catalogue_counts(self):
        rng = np.random.default_rng(0)
        items, state = rng.standard_normal((70_000, 3)), rng.standard_normal((130, 3))
        targets = rng.integers(1, 70_001, 130)
        past = rng.integers(1, 70_001, (130, 4))
        inputs = {"past_ids": past, "past_lengths": np.full(130, 3)}
        actual = Ranking("score.current", items).rows(state, {"targets": targets}, inputs)
        unit = items / np.linalg.norm(items, axis=1, keepdims=True)
        for user in (0, 1, 59, 60, 129):  # in the first block, at its end, and in the last
            scores = unit @ state[user]
            above = set(np.flatnonzero(scores > scores[targets[user] - 1]) + 1)
            assert actual[user] == 1 + len(above - set(past[user, :3]) - {targets[user]})

    def test_equal_scores_count_against_the_target(self):
        same = np.tile(ITEMS[:1], (5, 1)) * np.array([[1.0], [3.0], [0.7], [1e-3], [9.0]])
        assert [_rank(target, items=same) for target in (1, 3, 5)] == [5, 5, 5]
        assert _rank(3, items=same, history=(1, 2)) == 3
        assert _rank(3, state=np.zeros((1, 2))) == 5

    def test_equal_items_are_equal_wherever_they_are(self):
        """In whatever order a product is summed, in whatever block of a matrix."""
        rng = np.random.default_rng(3)
        items = rng.standard_normal((1001, 50))
        items[[0, 500, 1000]] = items[17]
        state = rng.standard_normal((1, 50))
        assert len({_rank(target, items=items, state=state) for target in (1, 18, 501, 1001)}) == 1

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_a_state_that_is_not_finite_has_no_rank(self, bad):
        inputs = {"past_ids": np.ones((2, 2), dtype=np.int64), "past_lengths": np.ones(2, dtype=np.int64)}
        states = np.array([[1.0, 0.0], [1.0, bad]])
        ranks = Ranking("score.current", ITEMS).rows(states, {"targets": np.array([3, 3])}, inputs)
        assert np.array_equal(np.isnan(ranks), [False, True])

    def test_hit_rates_gains_and_reciprocal_ranks_by_hand(self):
        actual = _metrics(Ranking("score.current", ITEMS))
        ranks = np.array([1.0, 3.0, 10.0, 11.0, 50.0, 51.0, 200.0, 201.0])
        values = {name: float(metric.over(ranks, ranks)) for name, metric in actual.items()}
        assert set(values) == {f"{kind}@{k}" for kind in ("HR", "NDCG") for k in CUTOFFS} | {"MRR"}
        assert [values[f"HR@{k}"] for k in (10, 50, 200)] == [3 / 8, 5 / 8, 7 / 8]
        assert values["NDCG@10"] == pytest.approx((1 + 1 / 2 + 1 / math.log2(11)) / 8)
        more = 1 / math.log2(12) + 1 / math.log2(51)
        assert values["NDCG@50"] == pytest.approx(values["NDCG@10"] + more / 8)
        assert values["MRR"] == pytest.approx(sum(1 / rank for rank in ranks) / 8)
