"""A user's own small model, judged through the public API: the engine needs no change for it."""

from pathlib import Path

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity.base.precision import PRECISIONS
from parity.in_process import CleanRun


class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)
        self.hidden = torch.nn.Linear(8, 16)
        self.score = torch.nn.Linear(16, 3)

    def forward(self, ids):
        return self.score(torch.relu(self.hidden(self.table(ids))))


class Port(tp.Module):
    def __init__(self, dtype, bias=True):
        super().__init__()
        self.table = tp.Embedding(50, 8, dtype=dtype)
        self.hidden = Hidden(dtype, bias)
        self.score = tp.Linear(16, 3, dtype=dtype)

    def forward(self, ids):
        return self.score(tp.relu(self.hidden(self.table(ids))))


class Hidden(tp.Linear):
    def __init__(self, dtype, has_bias):
        super().__init__(8, 16, dtype=dtype)
        self.adds_bias = has_bias

    def forward(self, x):
        return super().forward(x) if self.adds_bias else x @ tp.transpose(self.weight, 0, 1)


class SmallModel(parity.Case):
    name = "small_model"
    batch_size = 32

    def __init__(self, bias=True):
        self.bias = bias

    def build_reference(self):
        return Reference()

    def build_port(self, dtype):
        return Port(dtype, self.bias)

    def make_inputs(self):
        return {"ids": np.random.default_rng(self.seed).integers(0, 50, self.batch_size)}


# The user's part ends here.


def test_it_takes_at_most_60_lines():
    text = Path(__file__).read_text().split("\n# The user's part ends here.")[0]
    assert len(text.strip().splitlines()) <= 60


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_right_port_passes_module_by_module(precision):
    comparison = CleanRun(SmallModel(), PRECISIONS[precision]).judge("tripy")
    assert comparison.passed, comparison.diagnosis
    assert {tap.tap for tap in comparison.taps} == {"table", "hidden", "score", "forward.output"}


def test_a_dropped_bias_fails_and_names_the_module():
    comparison = CleanRun(SmallModel(bias=False), PRECISIONS["fp32"]).judge("tripy")
    assert not comparison.passed
    assert comparison.diagnosis.tap == "hidden"
