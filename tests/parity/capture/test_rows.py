"""Trials of rows: every way in which a row can depend on its batch, and a run on the day, shows."""

import numpy as np
import pytest
import torch

from cases.shipped import load_case
from parity.capture.captures import Capture
from parity.capture.rows import Trial, row_trials, run_row_trials
from parity.case import Case
from parity.inputs.arrays import make_inputs


class Rows(Case):
    """A function of (B, 3) arrays: no model, since runs are the test's own."""

    name = "rows"
    seed = 0
    batch_size = 5

    def __init__(self, valid=None):
        self._valid = valid

    def build_reference(self):
        raise NotImplementedError

    def build_port(self, dtype):
        raise NotImplementedError

    def make_inputs(self):
        values = np.random.default_rng(0).integers(1, 9, (self.batch_size, 3)).astype(np.float32)
        return {"x": values, "sizes": np.arange(self.batch_size)[::-1].copy()}

    def valid_rows(self, arrays):
        return {} if self._valid is None else {3: self._valid(arrays["sizes"])}


def kinds_that_differ(function, case=None):
    case = case or Rows()
    arrays = make_inputs(case).typical.arrays

    def run(arrays, capture):
        x, sizes = (torch.tensor(arrays[name]) for name in ("x", "sizes"))
        for name, tensor in function(x, sizes).items():
            capture.tensors[name] = tensor
        return capture

    whole = run(arrays, Capture()).tensors
    trials = run_row_trials(case, arrays, whole, run)
    assert {trial.kind for trial in trials} == {kind.value for kind in Trial}
    return {trial.kind for trial in trials if trial.taps}


EVERYWHERE = {kind.value for kind in Trial} - {Trial.AGAIN.value}


def test_independent_rows_are_equal_in_every_trial():
    shared = torch.arange(4.0)

    def function(x, sizes):
        return {
            "rows": x * 2,
            "sizes": sizes,
            "second axis": (x * 3).T.contiguous(),
            "several a row": x.repeat_interleave(2, dim=0),
            "one number a row": x.sum(1),
            "shared": shared,
        }

    assert kinds_that_differ(function) == set()


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        (lambda x, sizes: x * sizes[0], EVERYWHERE),
        (lambda x, sizes: x - x.mean(0), EVERYWHERE - {Trial.PERMUTED.value}),
        (lambda x, sizes: x * x.square().sum(), EVERYWHERE - {Trial.PERMUTED.value}),
        (lambda x, sizes: x + len(x), {Trial.ALONE.value, Trial.SMALL.value}),
        (lambda x, sizes: x + torch.arange(len(x))[:, None], EVERYWHERE - {Trial.NEIGHBOURS.value}),
        (lambda x, sizes: x + x.roll(1, 0), EVERYWHERE),
        (lambda x, sizes: (x + x.roll(1, 0)).T.contiguous(), EVERYWHERE),
        (lambda x, sizes: x * float("nan" if len(x) < 5 else 1), {Trial.ALONE.value, Trial.SMALL.value}),
    ],
    ids=["row 0's", "mean", "norm", "batch size", "place", "neighbour", "second axis", "NaN"],
)
def test_a_row_that_depends_on_its_batch_differs(fault, kinds):
    assert kinds_that_differ(lambda x, sizes: {"tap": fault(x, sizes)}) == kinds


def test_a_run_that_depends_on_the_day_differs_again():
    days = iter(range(100))
    assert Trial.AGAIN.value in kinds_that_differ(lambda x, sizes: {"tap": x + next(days)})


def test_padding_may_differ():
    def valid(sizes):
        return np.arange(3)[None, :] < np.minimum(sizes, 2)[:, None]

    def function(x, sizes):
        padded = torch.arange(3)[None, :] >= sizes.clamp(max=2)[:, None]
        return {"tap": torch.where(padded, x.sum(), x)}

    assert kinds_that_differ(function, Rows(valid)) == set()
    assert kinds_that_differ(function) != set()


def test_differences_are_those_of_the_rows():
    case = Rows()
    arrays = make_inputs(case).typical.arrays
    calls = iter(range(100))

    def run(arrays, capture):
        moved = 0.5 if next(calls) else 0.0
        capture.tensors["first"] = torch.tensor(arrays["x"])
        capture.tensors["second"] = torch.tensor(arrays["x"]) + torch.tensor([0.0, moved, 0.0])
        return capture

    whole = run(arrays, Capture()).tensors
    for trial in run_row_trials(case, arrays, whole, run):
        assert trial.taps == {"second": [0.5] * len(trial.rows)}


@pytest.mark.parametrize(
    "name", ["hstu_tiny", "stu_tiny", "dlrm_tiny", "dlrm_tiny_weighted", "dlrm_lecture_index"]
)
def test_rows_of_the_shipped_cases_are_separable(name):
    case = load_case(name)
    arrays = make_inputs(case).typical.arrays
    batch = case.batch_size_of(arrays)
    assert {trial.kind for trial in row_trials(case, arrays)} == set(Trial)
    turned = case.rows(case.rows(arrays, np.arange(batch)[::-1]), np.arange(batch)[::-1])
    assert {name: array.tolist() for name, array in turned.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
    repeated = case.rows(arrays, np.array([1, 1, 0]))
    assert case.batch_size_of(repeated) == 3
    case.validate(case.rows(arrays, np.array([0])))


def test_other_rows_need_no_more_room_than_the_batch():
    """A compiled engine has a largest size, also of tables' indices."""
    case = load_case("dlrm_tiny")
    arrays = make_inputs(case).typical.arrays
    for trial in row_trials(case, arrays):
        chosen = trial.arrays(case, arrays)
        assert all(chosen[name].size <= arrays[name].size for name in arrays)


def test_a_case_without_separable_rows_runs_twice():
    case = Rows()
    case.rows = lambda arrays, rows: None
    assert [trial.kind for trial in row_trials(case, make_inputs(case).typical.arrays)] == [Trial.AGAIN]
