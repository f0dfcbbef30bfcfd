"""Metrics of two sides over several batches: the flag, the interval, and where there is no number."""

import itertools
import math

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.verdict.judgement import MetricValues
from parity.verdict.task_metrics.clicks import Clicks
from parity.verdict.task_metrics.evaluation import Evaluation, difference_interval

FP32, FP16, BF16 = (PRECISIONS[name] for name in ("fp32", "fp16", "bf16"))


def _metrics(task):
    return {metric.name: metric for metric in task.metrics}


def _evaluated(task, precision, parts, runner="tripy", longest_sum=100):
    """Metrics of batches `(reference, oracle, port, labels, inputs)`, by name."""
    evaluation = Evaluation(task, precision)
    for reference, oracle, port, labels, inputs in parts:
        outputs = {"torch": reference, "oracle": oracle, runner: port}
        evaluation.add_outputs(outputs, labels, inputs, longest_sum)
    judgements = evaluation.judge(runner)
    assert {judgement.rows for judgement in judgements} == {sum(len(part[0]) for part in parts)}
    return {judgement.name: judgement.values or judgement for judgement in judgements}


def _clicked(count, precision=FP16, seed=0, change=lambda p, rng: p):
    """Clicks, and their predictions by oracle, reference and port: rounded in different ways."""
    rng = np.random.default_rng(seed)
    oracle = rng.uniform(0.02, 0.98, (count, 1))
    clicks = (rng.random(count) < oracle[:, 0]).astype(np.int64)

    def stored(values):
        noisy = values * (1 + precision.unit_roundoff * rng.uniform(-1, 1, values.shape))
        return torch.tensor(noisy).to(precision.dtype).double().numpy()

    reference = stored(oracle)
    return reference, oracle, change(stored(oracle), rng), {"clicks": clicks}, {}


def _cut(batch, *ends):
    """One batch as several."""
    reference, oracle, port, labels, inputs = batch
    starts = (0, *ends[:-1])
    return [
        (
            reference[a:b],
            oracle[a:b],
            port[a:b],
            {name: array[a:b] for name, array in labels.items()},
            {name: array[a:b] for name, array in inputs.items()},
        )
        for a, b in zip(starts, ends, strict=True)
    ]


class TestFlag:
    @pytest.mark.parametrize("precision", [FP32, FP16, BF16], ids=lambda p: p.name)
    def test_rounding_is_never_flagged(self, precision):
        for seed in range(15):
            actual = _evaluated(Clicks("p", precision), precision, [_clicked(300, precision, seed)])
            assert not any(metric.flagged for metric in actual.values()), seed

    def test_errors_that_add_up_are_flagged_though_each_is_within_the_limit(self):
        """Every element moves by one rounding, all in the same direction."""

        def upwards(p, rng):
            return np.nextafter(p.astype(np.float16), np.float16(1)).astype(np.float64)

        batch = _clicked(4000, change=upwards)
        reference, oracle, port, *_ = batch
        relative = np.linalg.norm(port - oracle) / np.linalg.norm(oracle)
        limit = 2 * np.linalg.norm(reference - oracle) / np.linalg.norm(oracle) + 2 * FP16.unit_roundoff
        assert relative < limit
        actual = _evaluated(Clicks("p", FP16), FP16, [batch])
        calibration = actual["calibration"]
        assert calibration.flagged
        assert calibration.interval[0] > 0
        assert abs(calibration.port - calibration.oracle) > calibration.limit

    def test_a_difference_that_rows_do_not_support_is_not_flagged(self):
        """A few rows far off: beyond the limit, and the interval holds 0."""

        def one_row(p, rng):
            p[0] = 1.0 - p[0]
            return p

        actual = _evaluated(Clicks("p", FP16), FP16, [_clicked(300, change=one_row)])["log loss"]
        assert abs(actual.port - actual.oracle) > actual.limit
        assert actual.interval[0] <= 0 <= actual.interval[1]
        assert not actual.flagged

    def test_a_port_nearer_to_the_oracle_than_the_reference_is_not_flagged(self):
        reference, oracle, _, labels, inputs = _clicked(4000)
        shifted = reference * 0.99
        actual = _evaluated(Clicks("p", FP16), FP16, [(shifted, oracle, oracle, labels, inputs)])
        assert actual["calibration"].interval[0] > 0
        assert not any(metric.flagged for metric in actual.values())

    def test_the_numbers_of_a_report_follow_from_one_another(self):
        actual = _evaluated(Clicks("p", BF16), BF16, [_clicked(300, BF16)])
        for metric in actual.values():
            assert isinstance(metric, MetricValues)
            assert metric.difference == metric.port - metric.reference
            assert metric.limit == metric.k * abs(metric.reference - metric.oracle) + metric.floor
            assert metric.floor > 0
            assert metric.k > 2

    def test_the_floor_is_what_the_output_s_error_makes_of_a_mean(self):
        """Calibration is linear: the floor is known without drawing."""
        count = 5000
        oracle = np.full((count, 1), 0.5)
        labels = {"clicks": np.arange(count) % 2}
        actual = _evaluated(Clicks("p", FP16), FP16, [(oracle, oracle, oracle, labels, {})])["calibration"]
        item = 2 * FP16.unit_roundoff * 0.5
        expected = 1.96 * item / math.sqrt(count) / 0.5
        assert actual.floor == pytest.approx(expected, rel=0.4)


class TestInterval:
    def test_it_covers_a_known_difference(self):
        """Of intervals of 200 samples, about 95 % hold the true difference."""
        metric = _metrics(Clicks("p", FP32))["calibration"]
        held = 0
        for seed in range(200):
            rng = np.random.default_rng(seed)
            reference = rng.uniform(0.2, 0.8, 150)
            port = reference + rng.normal(0.02, 0.05, 150)
            (low, high), _ = difference_interval(metric, np.ones(150, dtype=np.int64), reference, port)
            held += low <= 0.02 <= high
        assert 0.90 <= held / 200 <= 0.985

    def test_it_is_paired(self):
        """Rows differ a thousand times as much as sides do."""
        rng = np.random.default_rng(0)
        p, y = rng.uniform(0.05, 0.95, 500), rng.integers(0, 2, 500)
        noise = rng.normal(0, 1e-4, 500)
        (low, high), _ = difference_interval(_metrics(Clicks("p", FP32))["AUC"], y, p, p + noise)
        assert high - low < 0.002

    def test_equal_sides_differ_by_exactly_nothing(self):
        p, y = np.array([0.5, 0.6]), np.array([0, 1])
        assert difference_interval(_metrics(Clicks("p", FP32))["AUC"], y, p, p.copy()) == ((0.0, 0.0), "")

    def test_it_is_the_same_each_time(self):
        metric = _metrics(Clicks("p", FP32))["log loss"]
        rng = np.random.default_rng(0)
        p, q, y = rng.random(50), rng.random(50), rng.integers(0, 2, 50)
        assert difference_interval(metric, y, p, q) == difference_interval(metric, y, p, q)


class TestDegenerate:
    @pytest.mark.parametrize("label", [0, 1])
    def test_one_class_has_a_log_loss_and_reasons(self, label):
        reference, oracle, port, labels, inputs = _clicked(20)
        labels = {"clicks": np.full(20, label)}
        actual = _evaluated(Clicks("p", FP16), FP16, [(reference, oracle, port, labels, inputs)])
        assert actual["log loss"].port > 0
        for name in ("AUC", "normalized entropy"):
            assert actual[name].reason == f"all 20 labels are {label}"
            assert actual[name].values is None
        assert isinstance(actual["calibration"], MetricValues) == (label == 1)
        assert not any(metric.flagged for metric in actual.values())

    def test_one_row_has_values_and_no_interval(self):
        (batch, _) = _cut(_clicked(20), 1, 20)
        actual = _evaluated(Clicks("p", FP16), FP16, [batch])["log loss"]
        assert actual.port > 0
        assert (actual.interval, actual.no_interval) == (None, "one row is no sample")
        assert not actual.flagged

    def test_few_rows_may_have_resamples_of_one_class(self):
        reference, oracle, port, _, inputs = _clicked(6)
        labels = {"clicks": np.array([1, 0, 0, 0, 0, 0])}
        actual = _evaluated(Clicks("p", FP16), FP16, [(reference, oracle, port, labels, inputs)])["AUC"]
        assert actual.interval is None
        assert "of 999 resamples have labels of one kind only" in actual.no_interval
        assert 0 <= actual.port <= 1

    @pytest.mark.parametrize(("side", "named"), [(0, "torch"), (1, "oracle"), (2, "tripy")])
    def test_nan_is_a_reason_that_names_the_side(self, side, named):
        batch = list(_clicked(20))
        batch[side] = batch[side].copy()
        batch[side][3:5] = np.nan
        with np.errstate(invalid="ignore"):
            actual = _evaluated(Clicks("p", FP16), FP16, [tuple(batch)])
        for metric in actual.values():
            assert metric.reason == f"2 of 20 rows of {named} have no probability of 0..1"
            assert metric.values is None

    @pytest.mark.parametrize("port", [None, np.full((7, 1), 0.5)], ids=["missing", "shape"])
    def test_an_output_that_is_missing_or_of_another_shape_has_no_rows(self, port):
        first, second = _cut(_clicked(20), 8, 20)
        reference, oracle, _, *rest = second
        actual = _evaluated(Clicks("p", FP16), FP16, [first, (reference, oracle, port, *rest)])
        assert actual["AUC"].reason == "12 of 20 rows of tripy have no probability of 0..1"


def test_batches_in_any_order_give_the_same_metrics():
    batch = _clicked(300)
    parts = _cut(batch, 128, 256, 300)
    whole = _evaluated(Clicks("p", FP16), FP16, [batch])
    for order in itertools.permutations(parts):
        actual = _evaluated(Clicks("p", FP16), FP16, list(order))
        for name, metric in whole.items():
            for side in ("oracle", "reference", "port"):
                assert getattr(actual[name], side) == pytest.approx(getattr(metric, side), rel=1e-12)


def test_rows_that_change_places_change_the_metrics():
    """Labels belong to rows: the test above would pass if nothing did."""
    reference, oracle, port, labels, inputs = _clicked(300)
    turned = {"clicks": labels["clicks"][::-1]}
    (right, wrong) = (
        _evaluated(Clicks("p", FP16), FP16, [(reference, oracle, port, entry, inputs)])["AUC"]
        for entry in (labels, turned)
    )
    assert right.port > 0.7
    assert abs(wrong.port - 0.5) < 0.15
