"""A port that evaluates a tensor while it is compiled: the executable holds the value as a constant."""

from pathlib import Path

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity.base.precision import PRECISIONS
from parity.capture.store import open_capture, save_capture
from parity.in_process import CleanRun
from tests.parity.live_models import modules

D, N, ROWS = 6, 5, 36
INPUTS = {"x": np.random.default_rng(4).standard_normal((ROWS, N, D)).astype(np.float32)}
HERE = Path(__file__)


class Mean(torch.nn.Module):
    def forward(self, x):
        return x.sum(1) / x.shape[1]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(D, D)
        self.mean = Mean()
        self.head = torch.nn.Linear(D, 2)

    def forward(self, x):
        return self.head(self.mean(torch.relu(self.layer(x))) * x.shape[1])


def as_number(count, dtype):
    return float(count) if isinstance(count, int) else tp.cast(count, dtype)


class MeanPort(tp.Module):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def forward(self, x):
        count = x.shape[1]
        if self.fault == "module":
            count = int(x.shape[1])  # in the module
        return tp.sum(x, 1) / as_number(count, x.dtype)


class Port(tp.Module):
    def __init__(self, dtype, fault=""):
        super().__init__()
        self.layer = tp.Linear(D, D, dtype=dtype)
        self.mean = MeanPort(fault)
        self.head = tp.Linear(D, 2, dtype=dtype)
        self.fault = fault

    def forward(self, x):
        count = x.shape[1]
        if self.fault == "entry":
            count = int(x.shape[1])  # in the entry
        if self.fault == "unused":
            str(x.shape[1])  # read by nothing
        if self.fault == "assertion":
            assert x.shape[2] == D
        if self.fault == "branch" and x.shape[1] > N:  # in the branch
            count = count * 2
        if self.fault == "data" and tp.max(x) > 1e9:  # in the data
            count = count * 2
        if self.fault == "weights":
            (self.head.bias + 1.0).eval()
        return self.head(self.mean(tp.relu(self.layer(x))) * as_number(count, x.dtype))


def port_with(fault):
    return lambda dtype: Port(dtype, fault)


def judged(fault="", axes=(0, 1)):
    dynamic = {"x": dict.fromkeys(axes, 1)}
    return parity.compare(Model(), port_with(fault), INPUTS, ("fp32",), dynamic=dynamic)


def told(text):
    lines = HERE.read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))
    return (
        f"the port's code evaluates a tensor while it is compiled, at {HERE.name}:{number}: the executable "
        "holds the value as a constant"
    )


def noted(result):
    return {tap: module.notes for tap, module in modules(result).items() if "evaluates" in str(module.notes)}


@pytest.fixture(autouse=True)
def _in_this_folder(monkeypatch):
    monkeypatch.chdir(HERE.parent)


def test_sizes_that_stay_tensors_have_no_note():
    result = judged()
    assert result.passed, result
    assert noted(result) == {}


@pytest.mark.parametrize(("fault", "place"), [("module", "mean"), ("entry", "head")])
def test_a_size_that_is_fixed_is_told_beside_the_failure(fault, place):
    result = judged(fault)
    assert f"FAIL at {place}\n" in str(result)
    assert f"cause: {told(f'in the {fault}')}\n" in f"{result}\n"


@pytest.mark.parametrize(
    ("fault", "text"),
    [("unused", "read by nothing"), ("branch", "in the branch"), ("data", "in the data")],
)
def test_a_value_that_changes_no_result_here_is_a_note(fault, text):
    result = judged(fault)
    assert result.passed, result
    assert noted(result) == {"forward.output": (told(text),)}


@pytest.mark.parametrize(("fault", "axes"), [("weights", (0, 1)), ("entry", (0,)), ("assertion", (0, 1))])
def test_what_the_inputs_do_not_change_has_no_note(fault, axes):
    """The weights, and a size of which the port is compiled for one value alone."""
    result = judged(fault, axes)
    assert result.passed, result
    assert noted(result) == {}


def test_a_saved_capture_keeps_the_lines(tmp_path):
    case = parity.ModelPair(Model(), port_with("module"), INPUTS, dynamic={"x": {0: 1, 1: 1}})
    evaluate = tp.Tensor.eval
    run = CleanRun(case, PRECISIONS["fp32"])
    capture = run.load("tripy").run_tapped(run.arrays)
    assert tp.Tensor.eval is evaluate
    save_capture(capture, tmp_path / "capture")
    assert list(open_capture(tmp_path / "capture").evaluated) == ["mean"]
