"""Hidden choices that the port's own results refute: a search that takes one leaves out no row."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import parity
from parity.base.precision import PRECISIONS
from parity.in_process import CleanRun
from parity.verdict.comparison import compare

ROWS, WIDTH = 6, 64
EDGE, DISTANCE = 2.0, 5e-7


class Buckets(nn.Module):
    """A learned number for the bucket of each time; one time a row lies on an edge."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(8))

    def forward(self, times):
        return self.table[torch.floor(times).long().clamp(0, 7)]


class Timed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Linear(WIDTH, WIDTH, bias=False)
        self.bias = Buckets()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        return self.behind(self.bias(self.rate(x)))

    def behind(self, x):
        for layer in self.layers:
            x = layer(x)
        return {"y": x}


class Case(parity.Case):
    name = "timed"
    batch_size = ROWS
    initial = "own"

    def build_reference(self):
        torch.manual_seed(0)
        model = Timed()
        with torch.no_grad():
            # Times are the sums of two inputs, each with a rounding of its own.
            model.rate.weight.copy_(torch.eye(WIDTH) + torch.eye(WIDTH).roll(1, 0))
        return model

    def build_port(self, dtype):
        raise NotImplementedError

    def make_inputs(self):
        x = np.random.default_rng(0).uniform(0.1, 3.0, (ROWS, WIDTH)).astype(np.float32)
        # Close to the edge, and so far from it that neither the reference nor a sample crosses it.
        x[:, 0], x[:, 1] = 0.5, EDGE - 0.5 - DISTANCE
        return {"x": x}

    def boundaries(self):
        return {"Buckets": lambda times: np.abs(times.numpy() - np.round(times.numpy())) < 2.0 * DISTANCE}


@pytest.fixture(scope="module")
def run():
    return CleanRun(Case(), PRECISIONS["fp32"], isolated=False)


def port_of(run, shown, used):
    """A port whose module returns the buckets `shown`, and whose layers receive the buckets `used` (B, W)."""
    model = run.case.build_reference()
    model.load_state_dict(run.weights)
    tensors = dict(run.reference.tensors) | {"bias": shown}
    x = used
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            x = tensors[f"layers.{number}"] = layer(x)
    outputs = {name: x for name in tensors if name not in run.evidence.kinds}
    results = run.reference_results(untapped=outputs, tapped=tensors | outputs, poisoned={})
    return replace(results, isolated={})


def flipped(run, row):
    """The reference's buckets with the other side of the edge in a row."""
    buckets = run.reference.tensors["bias"].clone()
    near = run.evidence.boundary["bias"][row].nonzero()[0]
    table = run.weights["bias.table"]
    own = int((table == buckets[row, near[0]]).nonzero()[0])
    buckets[row, near[0]] = table[3 - own]
    assert own in (1, 2)
    return buckets


def test_a_port_on_the_other_side_of_an_edge_passes(run):
    buckets = flipped(run, 0)
    assert compare(run.evidence, port_of(run, buckets, buckets)).passed


def test_the_search_leaves_no_row_without_a_verdict(run):
    """The other side of the edge explains the layers, and not the buckets that the port shows."""
    shown = run.reference.tensors["bias"]
    comparison = compare(run.evidence, port_of(run, shown, flipped(run, 0)))
    assert {tap.accumulated.checked for tap in comparison.taps if tap.path != "bias"} == {ROWS * WIDTH}


@pytest.mark.parametrize("share", [0.9, 0.6, -0.5])
def test_a_fault_in_a_row_at_an_edge_fails(run, share):
    """The flip comes nearer to the port than no flip, and explains nothing."""
    shown = run.reference.tensors["bias"]
    used = shown + share * (flipped(run, 0) - shown)
    comparison = compare(run.evidence, port_of(run, shown, used))
    assert not comparison.passed
    assert comparison.diagnosis.tap == "layers.0"
