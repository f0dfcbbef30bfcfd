"""Limits of task metrics: floors, intervals, ties, and labels without a value."""

import math

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.base.task import Metric
from parity.capture.captures import Capture
from parity.capture.store import save_capture
from parity.execution.folder import BatchFolder
from parity.inputs.arrays import CaseInputs, save
from parity.verdict.bound import bound_for
from parity.verdict.task_metrics.clicks import Clicks
from parity.verdict.task_metrics.evaluation import PERTURBATIONS, SEED, Evaluation, difference_interval
from parity.verdict.task_metrics.ranking import Ranking

FP16, FP32 = PRECISIONS["fp16"], PRECISIONS["fp32"]
HALF = np.arange(1000) % 2
MEAN = Metric("mean", lambda values, labels: values.mean(axis=-1))


def evaluated(parts, longest_sums=None, precision=FP16):
    """Metrics of batches `(reference, oracle, port, labels)`, by name."""
    evaluation = Evaluation(Clicks("p", precision), precision)
    for place, (reference, oracle, port, labels) in enumerate(parts):
        outputs = {"torch": reference, "oracle": oracle, "tripy": port}
        longest = 100 if longest_sums is None else longest_sums[place]
        evaluation.add_outputs(outputs, {"clicks": labels}, {}, longest)
    return {judgement.name: judgement.values for judgement in evaluation.judge("tripy")}


def flat(value, count=1000):
    return np.full((count, 1), value)


def test_the_floor_grows_with_the_reference_s_errors():
    """Calibration is linear: each row may be off by k times the reference's error, with a random sign."""
    error = 1e-2
    part = (flat(0.5 + error), flat(0.5), flat(0.5), HALF)
    item = bound_for(FP16, 100).k * error
    expected = 1.96 * item / math.sqrt(1000) / 0.5
    assert evaluated([part])["calibration"].floor == pytest.approx(expected, rel=0.4)


def test_the_signs_of_one_batch_are_not_those_of_another():
    parts = [(flat(0.5, 20), flat(0.5, 20), flat(0.5, 20), HALF[:20])] * 50
    item = bound_for(FP16, 100).floor * 0.5
    expected = 1.96 * item / math.sqrt(1000) / 0.5
    assert evaluated(parts)["calibration"].floor == pytest.approx(expected, rel=0.4)


@pytest.mark.parametrize("longest_sums", [(10, 4000, 20), (4000, 10, 20), (20, 10, 4000)])
def test_the_longest_sum_of_all_batches_counts(longest_sums):
    parts = [(flat(0.5, 20), flat(0.5, 20), flat(0.5, 20), HALF[:20])] * 3
    for metric in evaluated(parts, longest_sums).values():
        assert metric.k == bound_for(FP16, 4000).k != bound_for(FP16, 20).k
    short = evaluated(parts[:1], (0,))["calibration"]
    assert short.k == bound_for(FP16, 1).k


@pytest.mark.parametrize("sign", [1, -1])
def test_a_shift_in_either_direction_is_flagged(sign):
    port = flat(0.5 + sign * 0.01) + np.random.default_rng(1).normal(0, 1e-3, (1000, 1))
    metric = evaluated([(flat(0.5), flat(0.5), port, HALF)])["calibration"]
    assert metric.flagged
    assert metric.interval[0] * metric.interval[1] > 0


@pytest.mark.parametrize("sign", [1, -1])
def test_an_interval_that_ends_at_0_flags_nothing(sign):
    """Three rows of a thousand differ: some resamples hold none of them."""
    port = flat(0.5)
    port[:3] += 0.4 * sign
    metric = evaluated([(flat(0.5), flat(0.5), port, HALF)])["calibration"]
    assert abs(metric.port - metric.oracle) > metric.limit
    assert 0.0 in metric.interval
    assert not metric.flagged


def test_two_rows_are_a_sample():
    truth = np.array([0, 1])
    interval, reason = difference_interval(MEAN, truth, np.array([0.1, 0.2]), np.array([0.2, 0.4]))
    assert reason == ""
    assert interval == pytest.approx((0.1, 0.2))
    assert difference_interval(MEAN, truth[:1], np.array([0.1]), np.array([0.2]))[1] == "one row is no sample"


def test_the_interval_is_that_of_the_percentiles():
    """Of a skewed difference, corrected intervals lie further to one side."""
    rng = np.random.default_rng(2)
    reference, change = rng.normal(size=40), rng.lognormal(sigma=1.5, size=40)
    (low, high), _ = difference_interval(MEAN, np.zeros(40, int), reference, reference + change)
    means = rng.choice(change, (20_000, 40)).mean(axis=1)
    spread = means.std()
    assert low == pytest.approx(np.quantile(means, 0.025), abs=0.12 * spread)
    assert high == pytest.approx(np.quantile(means, 0.975), abs=0.25 * spread)


def test_many_rows_are_resampled_in_blocks(monkeypatch):
    rng = np.random.default_rng(3)
    reference, port = rng.random(30), rng.random(30)
    whole = difference_interval(MEAN, HALF[:30], reference, port)
    for block in (1, 30, 100):
        monkeypatch.setattr("parity.verdict.task_metrics.evaluation._BLOCK", block)
        assert difference_interval(MEAN, HALF[:30], reference, port)[0] == pytest.approx(whole[0], abs=0.08)


def test_a_batch_in_files_has_the_same_metrics(tmp_path):
    """The oracle's output is that of its tapped run; a runner without a saved run has no rows."""
    rng = np.random.default_rng(4)
    oracle = torch.from_numpy(rng.uniform(0.1, 0.9, (40, 1)))
    reference, port = oracle.half(), (oracle * 1.001).half()
    batch = BatchFolder(tmp_path)
    save(CaseInputs({"x": np.zeros(2)}), batch.inputs)
    save(CaseInputs({"clicks": HALF[:40]}), batch.labels)
    folder = batch.precision("fp16")
    for runner, run, tensor in (
        ("torch", "untapped", reference),
        ("torch", "tapped", 1 - reference),
        ("oracle", "tapped", oracle),
        ("tripy", "untapped", port),
        ("tripy", "tapped", 1 - port),
    ):
        capture = Capture(tensors={"p": tensor}, longest_sums={"": 77})
        stem = getattr(folder.runner(runner), run)
        stem.parent.mkdir(parents=True, exist_ok=True)
        save_capture(capture, stem)
    task = Seen()
    evaluation = Evaluation(task, FP16)
    evaluation.add(batch, ["tripy", "onnx"])
    assert task.calls
    assert all(set(inputs) == {"x"} for *_, inputs in task.calls)
    sides = [tensor.double().numpy() for tensor in (reference, oracle, port)]
    expected = evaluated([(*sides, HALF[:40])], (77,))
    assert {judged.name: judged.values for judged in evaluation.judge("tripy")} == expected
    (reason,) = {judged.reason for judged in evaluation.judge("onnx")}
    assert reason == "40 of 40 rows of onnx have no probability of 0..1"


def test_clicks_of_one_class_have_no_number():
    metrics = {metric.name: metric for metric in Clicks("p", FP32).metrics}
    p = np.array([[0.2, 0.3, 0.4], [0.2, 0.3, 0.4], [0.2, 0.3, 0.4]])
    y = np.array([[0, 0, 0], [1, 1, 1], [0, 1, 0]])
    defined = {
        "log loss": [True, True, True],
        "AUC": [False, False, True],
        "normalized entropy": [False, False, True],
        "calibration": [False, True, True],
    }
    for name, metric in metrics.items():
        assert np.isfinite(metric.over(p, y)).tolist() == defined[name], name
    reasons = {name: metric.undefined(np.zeros(3, int)) for name, metric in metrics.items()}
    assert reasons == dict.fromkeys(metrics, "all 3 labels are 0") | {"log loss": ""}
    assert not any(metric.undefined(np.array([0, 1])) for metric in metrics.values())


def test_a_perturbed_probability_stays_one():
    nearest = Clicks("p", FP32).nearest(np.array([[-0.1], [0.0], [0.4], [1.0], [1.1]]))
    assert nearest.ravel().tolist() == [0.0, 0.0, 0.4, 1.0, 1.0]


def rank(items, target=1, state=(1.0, 0.0)):
    inputs = {"past_ids": np.zeros((1, 1), int), "past_lengths": np.zeros(1, int)}
    return Ranking("s", np.array(items)).rows(np.array([state]), {"targets": np.array([target])}, inputs)[0]


@pytest.mark.parametrize(("units", "position"), [(3, 2), (5, 1)])
def test_scores_are_equal_to_the_round_off_of_their_sum(units, position):
    """Two terms of float64, each with a unit of round-off on either side, are four units."""
    cosine = 1 - units * 2.0**-53
    items = [[1.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]]
    assert np.linalg.norm(items[1]) == 1.0
    assert rank(items) == position
    assert rank(items, state=(8.0, 0.0)) == position


def test_equal_scores_of_a_user_do_not_depend_on_other_users():
    cosine = 1 - 5 * 2.0**-53
    items = np.array([[1.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]])
    inputs = {"past_ids": np.zeros((2, 1), int), "past_lengths": np.zeros(2, int)}
    states = np.array([[1.0, 0.0], [1e6, 0.0]])
    assert Ranking("s", items).rows(states, {"targets": np.ones(2, int)}, inputs).tolist() == [1, 1]


def test_a_difference_within_the_limit_is_not_flagged_however_certain():
    rng = np.random.default_rng(3)
    oracle, labels = rng.uniform(0.2, 0.8, (200, 1)), {"clicks": rng.integers(0, 2, 200)}
    for factor, flagged in ((1 + 1e-6, False), (1.2, True)):
        evaluation = Evaluation(Clicks("p", FP16), FP16)
        evaluation.add_outputs({"torch": oracle, "oracle": oracle, "tripy": factor * oracle}, labels, {}, 10)
        values = {judged.name: judged.values for judged in evaluation.judge("tripy")}["calibration"]
        assert values.interval[0] > 0.0
        assert values.flagged is flagged


def test_an_item_without_a_direction_has_a_score_of_0():
    items = [[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]
    assert [rank(items, target) for target in (1, 2, 3)] == [1, 2, 3]


def test_a_catalogue_of_any_size_is_scored_user_by_user(monkeypatch):
    items = np.random.default_rng(5).normal(size=(50, 4))
    states = np.random.default_rng(6).normal(size=(7, 4))
    states[2, 1] = np.nan
    labels = {"targets": np.arange(1, 8)}
    inputs = {"past_ids": np.arange(14).reshape(7, 2) + 1, "past_lengths": np.array([0, 1, 2, 2, 1, 0, 2])}
    whole = Ranking("s", items).rows(states, labels, inputs)
    for scores in (1, 50, 149, 150):
        monkeypatch.setattr("parity.verdict.task_metrics.ranking._BLOCK_SCORES", scores)
        np.testing.assert_array_equal(Ranking("s", items).rows(states, labels, inputs), whole)


class Seen(Clicks):
    """Keeps the outputs, labels and inputs that it makes rows of."""

    def __init__(self):
        super().__init__("p", FP16)
        self.calls = []

    def rows(self, output, labels, inputs):
        self.calls.append((output, labels, inputs))
        return super().rows(output, labels, inputs)


def test_each_output_is_moved_by_its_own_error_and_meets_its_labels_and_inputs():
    task, labels, inputs = Seen(), {"clicks": np.array([0, 1, 1])}, {"x": np.zeros(3)}
    oracle, reference = np.array([[0.25], [0.5], [0.5]]), np.array([[0.25], [0.375], [0.5625]])
    evaluation = Evaluation(task, FP16)
    evaluation.add_outputs({"torch": reference, "oracle": oracle, "tripy": oracle}, labels, inputs, 10)
    assert all(seen[1] is labels and seen[2] is inputs for seen in task.calls)
    moved = np.stack([output for output, *_ in task.calls[3:]])
    assert len(moved) == PERTURBATIONS
    bound = bound_for(FP16, 10)
    error = bound.k * np.abs(reference - oracle) + bound.floor * oracle
    assert np.abs(moved - oracle) == pytest.approx(np.broadcast_to(error, moved.shape))
    # Both signs occur in each row, and the first batch has the first signs.
    assert ((moved > oracle).any(axis=0) & (moved < oracle).any(axis=0)).all()
    signs = np.random.default_rng([SEED, 0]).choice((-1.0, 1.0), moved.shape)
    assert np.array_equal(np.sign(moved - oracle), signs)
