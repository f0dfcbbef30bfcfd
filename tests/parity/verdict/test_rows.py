"""Rows of a batch: other bits are told, and a difference beyond both limits fails."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.capture.rows import Trial, run_row_trials
from parity.case import Case
from parity.execution.record import RowTrialRecord
from parity.in_process import CleanRun
from parity.verdict.comparison import compare
from parity.verdict.judgement import RowJudgement
from parity.verdict.rows import judge_rows, row_diagnosis
from tests.parity.judgements import tap as judged_tap
from tests.parity.judgements import verdict


class Pooled(torch.nn.Module):
    """The mean of a row's valid positions; with the fault, of as many as row 0 has."""

    def __init__(self, shares_length):
        super().__init__()
        self.shares_length = shares_length

    def forward(self, x_BND, lengths_B):
        if self.shares_length:
            lengths_B = lengths_B[:1].expand(len(lengths_B))
        valid_BN = torch.arange(x_BND.shape[1], device=x_BND.device)[None] < lengths_B[:, None]
        return (x_BND * valid_BN[..., None]).sum(1) / lengths_B[:, None]


class Model(torch.nn.Module):
    def __init__(self, shares_length):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.pooled = Pooled(shares_length)

    def forward(self, x, lengths):
        return self.pooled(self.first(x), lengths)


class Pooling(Case):
    name = "pooling"
    seed = 0
    batch_size = 6

    def __init__(self, shares_length):
        self.shares_length = shares_length

    def build_reference(self):
        return Model(self.shares_length)

    def build_port(self, dtype):
        raise NotImplementedError

    def make_inputs(self):
        random = np.random.default_rng(self.seed)
        x = random.standard_normal((self.batch_size, 7, 4)).astype(np.float32)
        return {"x": x, "lengths": np.array([5, 1, 7, 3, 2, 6])[: self.batch_size]}


def judged(shares_length):
    case = Pooling(shares_length)
    run = CleanRun(case, PRECISIONS["fp32"])
    runner = run.load("torch")
    trials = run_row_trials(case, run.arrays, run.reference.tensors, runner.run_tapped)
    comparison = compare(run.evidence, run.reference_results())
    # Each module does on the batch just as the oracle does: no other check sees the fault.
    assert comparison.passed
    return judge_rows(run.evidence, comparison.taps, [RowTrialRecord(**vars(trial)) for trial in trials])


def test_a_model_with_independent_rows_passes():
    rows = judged(shares_length=False)
    assert [row.kind for row in rows] == [kind.value for kind in Trial]
    assert row_diagnosis(rows).kind == "none"
    assert all(row.largest < 1e-6 for row in rows)


def test_a_model_in_which_every_row_uses_row_0_s_length_fails():
    rows = judged(shares_length=True)
    failed = {row.kind: row for row in rows if row.excess}
    assert set(failed) == {kind.value for kind in Trial} - {Trial.AGAIN.value}
    assert {row.excess for row in failed.values()} == {"pooled"}
    diagnosis = row_diagnosis(rows)
    assert (diagnosis.kind, diagnosis.tap) == ("check", "pooled")
    assert diagnosis.text.startswith("row 3 alone differs from itself in the batch by ")
    assert "two results within the limit differ by at most" in diagnosis.text


@pytest.fixture(scope="module")
def evidence():
    return CleanRun(Pooling(False), PRECISIONS["fp32"], isolated=False).evidence


LIMIT = verdict().limit.largest


def judge_one(evidence, taps, judgements=None, kind=Trial.ALONE, reference=None):
    judgements = [judged_tap(name) for name in ("first", "pooled")] if judgements is None else judgements
    sides = (taps, reference or {})
    trials = [[RowTrialRecord(kind=kind.value, rows=(3, 1), taps=side)] for side in sides]
    (row,) = judge_rows(evidence, judgements, *trials)
    return row


def scale(evidence, tap):
    return float(evidence.oracle[tap].abs().max())


@pytest.mark.parametrize("tap", ["first", "pooled"])
def test_a_difference_up_to_both_limits_passes_and_more_fails(evidence, tap):
    allowed = 2 * LIMIT * scale(evidence, tap)
    assert not judge_one(evidence, {tap: [0.0, 0.999 * allowed]}).excess
    failed = judge_one(evidence, {tap: [0.0, 1.001 * allowed]})
    assert failed.excess == tap
    assert failed.reason.startswith("row 1 alone")
    assert failed.largest == pytest.approx(2 * LIMIT * 1.001)


def test_other_bits_of_one_value_are_told(evidence):
    row = judge_one(evidence, {"pooled": [0.0, 0.0], "first": [0.0, 0.0]})
    assert (row.first, row.largest, row.excess) == ("first", 0.0, "")
    assert judge_one(evidence, {}) == RowJudgement(Trial.ALONE.value, 2)


def test_a_tap_that_only_moves_data_must_be_equal(evidence):
    exact = verdict()
    exact = replace(exact, limit=replace(exact.limit, largest=0.0))
    assert judge_one(evidence, {"first": [1e-30, 0.0]}, [judged_tap("first", accumulated=exact)]).excess
    assert not judge_one(evidence, {"first": [0.0, 0.0]}, [judged_tap("first", accumulated=exact)]).excess


def test_a_tap_without_a_limit_is_no_failure_by_itself(evidence):
    row = judge_one(evidence, {"first": [9.0, 0.0]}, [judged_tap("first", accumulated=None)])
    assert (row.first, row.excess) == ("first", "")
    assert not judge_one(evidence, {"gone": [9.0, 0.0]}).excess


def test_a_difference_from_zeros_is_infinite(evidence):
    zeros = replace(evidence, oracle={"first": torch.zeros(6, 7, 4)})
    row = judge_one(zeros, {"first": [1e-30, 0.0]})
    assert math.isinf(row.largest)
    assert row.excess == "first"


def test_a_row_that_crosses_a_discontinuity_is_not_judged(evidence):
    boundary = np.zeros((6, 7, 4), bool)
    boundary[3, 6, 3] = True
    crossing = replace(evidence, boundary={"first": boundary})
    # Row 3 differs at its discontinuity, and row 1 has none.
    assert not judge_one(crossing, {"first": [9.0, 0.0], "pooled": [9.0, 0.0]}).excess
    assert judge_one(crossing, {"first": [9.0, 0.0], "pooled": [9.0, 9.0]}).reason.startswith("row 1")
    # Without a difference there, row 3 did not cross it.
    assert judge_one(crossing, {"pooled": [9.0, 0.0]}).reason.startswith("row 3")
    assert judge_one(crossing, {"first": [0.0, 0.0], "pooled": [9.0, 0.0]}).reason.startswith("row 3")


def test_a_row_that_crosses_a_discontinuity_in_the_reference_is_not_judged(evidence):
    boundary = np.zeros((6, 7, 4), bool)
    boundary[3, 6, 3] = True
    crossing = replace(evidence, boundary={"first": boundary})
    moving = {"first": [9.0, 0.0], "pooled": [9.0, 0.0]}
    # The port moves behind it alone, by a rounding.
    for taps in ({"pooled": [1e-9, 0.0]}, {"pooled": [0.0, 0.0]}, {}):
        assert not judge_one(crossing, taps, reference=moving).excess
    assert judge_one(evidence, {"pooled": [0.0, 0.0]}, reference=moving).reason.startswith("row 3")


def test_integers_behind_other_numbers_may_be_other_choices(evidence):
    tensors = {
        "first": torch.zeros(6, 4),
        "index": torch.zeros(6, dtype=torch.int64),
        "pooled": torch.zeros(6),
    }
    choosing = replace(evidence, reference=replace(evidence.reference, tensors=tensors))
    big = scale(evidence, "pooled")
    # Row 3 has other numbers, another index, and another result behind it.
    chosen = {"first": [1e-12, 0.0], "index": [2.0, 0.0], "pooled": [big, 0.0]}
    assert not judge_one(choosing, chosen).excess
    assert judge_one(choosing, chosen | {"first": [0.0, 0.0]}).excess == "pooled"
    # An index behind equal numbers is no choice, and without another index all numbers are judged.
    exact = verdict()
    taps = [judged_tap("index", accumulated=replace(exact, limit=replace(exact.limit, largest=0.0)))]
    assert judge_one(choosing, chosen | {"first": [0.0, 0.0]}, taps).excess == "index"
    assert judge_one(choosing, chosen | {"index": [0.0, 0.0]}).excess == "pooled"


def test_the_largest_elements_are_those_that_count(evidence):
    tensors = {
        "whole": torch.tensor([[4.0, -0.5, math.inf, 0.0]]).repeat(6, 1),
        "half": torch.full((6, 2), 0.5),
    }
    counting = replace(evidence, oracle=tensors)
    taps = [judged_tap(name) for name in tensors]
    # In units of the largest finite element, also of one below 1.
    assert judge_one(counting, {"whole": [1.0, 0.0]}, taps).largest == 0.25
    assert judge_one(counting, {"half": [1.0, 0.0]}, taps).largest == 2.0
    # Elements at a discontinuity do not count.
    boundary = {"whole": np.zeros((6, 4), bool)}
    boundary["whole"][:, 0] = True
    leaving = replace(counting, boundary=boundary)
    assert judge_one(leaving, {"whole": [1.0, 0.0]}, taps).largest == 2.0
    # Integers and booleans have no unit.
    assert (
        judge_one(replace(counting, oracle={"index": torch.full((6,), 9)}), {"index": [3.0, 0.0]}).largest
        == 3.0
    )


def test_rows_that_other_numbers_or_choices_reach_are_remembered(evidence):
    tensors = {name: torch.zeros(6) for name in ("first", "second", "third", "pooled")}
    tensors |= {name: torch.zeros(6, dtype=torch.int64) for name in ("index", "later")}
    order = ("first", "second", "index", "third", "later", "pooled")
    reference = replace(evidence.reference, tensors={name: tensors[name] for name in order})
    choosing = replace(evidence, reference=reference)
    big = scale(evidence, "pooled")
    # Row 3 differs at first, row 1 behind it; both have another index, and one of them a later one.
    taps = {"first": [1e-12, 0.0], "second": [0.0, 1e-12], "index": [2.0, 2.0], "later": [0.0, 2.0]}
    assert not judge_one(choosing, taps | {"pooled": [big, big]}).excess
    # Other numbers alone are no other choice.
    assert judge_one(choosing, {"first": [1e-12, 0.0], "pooled": [big, 0.0]}).excess == "pooled"
    assert judge_one(choosing, {"first": [1e-12, 0.0], "second": [1e-12, 0.0], "pooled": [big, 0.0]}).excess


def test_the_first_of_equal_differences_is_told(evidence):
    tensors = {name: torch.ones(6, 2) for name in ("pooled", "first")}
    row = judge_one(replace(evidence, oracle=tensors), {"pooled": [1e-9, 0.0], "first": [1e-9, 0.0]})
    # In the order in which the reference's modules finish.
    assert (row.first, row.largest_tap) == ("first", "first")


def test_a_tap_that_the_reference_lacks_comes_last(evidence):
    row = judge_one(evidence, {"gone": [1.0, 0.0], "away": [1.0, 0.0], "pooled": [1e-9, 0.0]})
    assert row.first == "pooled"
    trials = [
        RowTrialRecord(kind="alone", rows=(1,), taps={"gone": [1.0]}),
        RowTrialRecord(kind="alone", rows=(2,), taps={"pooled": [1e-9]}),
    ]
    assert judge_rows(evidence, [], trials)[0].first == "pooled"
    assert judge_rows(evidence, [], trials[::-1])[0].first == "pooled"
    silent = RowTrialRecord(kind="alone", rows=(1,), taps={})
    assert judge_rows(evidence, [], [silent, silent]) == (RowJudgement("alone", 2),)


def test_trials_of_one_kind_are_one_judgement(evidence):
    judgements = [judged_tap(name) for name in ("first", "pooled")]
    big = scale(evidence, "pooled")
    trials = [
        RowTrialRecord(kind="alone", rows=(0,), taps={}),
        RowTrialRecord(kind="alone", rows=(1,), taps={"pooled": [big]}),
        RowTrialRecord(kind="alone", rows=(2,), taps={"first": [1e-9], "pooled": [2 * big]}),
    ]
    (row,) = judge_rows(evidence, judgements, trials)
    assert (row.rows, row.first, row.largest_tap, row.excess) == (3, "first", "pooled", "pooled")
    assert row.largest == pytest.approx(2.0)
    assert row.reason.startswith("row 1 alone")


def test_a_row_must_move_as_far_as_the_reference_s_where_that_depends_on_its_batch(evidence):
    whole = scale(evidence, "pooled")
    reference = {"pooled": [0.0, 0.5 * whole]}
    # Of both results and of both trials: 2 * limit * (2 * scale + movement).
    allowed = 2 * LIMIT * 2.5 * whole
    for sign in (1, -1):
        for factor, fails in ((0.99, False), (1.01, True)):
            taps = {"pooled": [0.0, 0.5 * whole + sign * factor * allowed]}
            row = judge_one(evidence, taps, reference=reference)
            assert bool(row.excess) is fails
    assert row.reason.startswith("row 1 alone differs from itself in the batch by 0.5")
    assert "of pooled, the PyTorch model's by 0.5; two movements within the limit differ by" in row.reason
    # A row that does not move at all.
    assert judge_one(evidence, {}, reference=reference).excess == "pooled"
    # Another row's movement says nothing about this one.
    assert judge_one(evidence, {"pooled": [0.5 * whole, 0.0]}, reference=reference).excess == "pooled"


def test_a_reference_that_moves_within_its_limit_allows_no_more(evidence):
    whole = scale(evidence, "pooled")
    reference = {"pooled": [0.0, 1.9 * LIMIT * whole]}
    assert judge_one(evidence, {"pooled": [0.0, 2.01 * LIMIT * whole]}, reference=reference).excess
    assert not judge_one(evidence, {"pooled": [0.0, 0.0]}, reference=reference).excess


def test_a_reference_that_moves_as_far_as_its_limit_allows_no_more(evidence):
    ones = replace(evidence, oracle={"pooled": torch.ones(6, 2)})
    allowed = 2 * LIMIT
    reference = {"pooled": [0.0, allowed]}
    assert judge_one(ones, {"pooled": [0.0, 2.5 * allowed]}, reference=reference).excess


def test_the_row_that_is_farthest_beyond_its_limit_is_told(evidence):
    allowed = 2 * LIMIT * scale(evidence, "pooled")
    for differences, row in (([1.1, 2.0], 1), ([2.0, 1.1], 3)):
        taps = {"pooled": [factor * allowed for factor in differences]}
        assert judge_one(evidence, taps).reason.startswith(f"row {row} ")


def test_a_movement_of_the_reference_at_a_tap_without_a_judgement_excuses_no_integer(evidence):
    tensors = {"away": torch.zeros(6, 4), "index": torch.zeros(6, dtype=torch.int64)}
    choosing = replace(evidence, reference=replace(evidence.reference, tensors=tensors))
    exact = verdict()
    taps = [judged_tap("index", accumulated=replace(exact, limit=replace(exact.limit, largest=0.0)))]
    moving = {"away": [1.0, 0.0], "index": [2.0, 0.0]}
    assert judge_one(choosing, {}, taps, reference=moving).excess == "index"


def test_a_trial_of_other_rows_expects_nothing(evidence):
    whole = scale(evidence, "pooled")
    trial = RowTrialRecord(kind="alone", rows=(1,), taps={"pooled": [whole]})
    other = RowTrialRecord(kind="alone", rows=(2,), taps={"pooled": [whole]})
    judgements = [judged_tap("pooled")]
    assert judge_rows(evidence, judgements, [trial], [other])[0].excess == "pooled"
    assert judge_rows(evidence, judgements, [trial], [trial])[0].excess == ""
