"""The reference in PyTorch: watching it changes none of its kernels."""

import numpy as np
import torch

from parity.base.precision import PRECISIONS
from parity.case import Case
from parity.runners.torch.eager import TorchRunner


class Sideways(torch.nn.Module):
    """A layer on a tensor that is not contiguous, which is one large product or many small ones."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(24, 72)

    def forward(self, x):
        return self.last(x.transpose(0, 1))


class SidewaysCase(Case):
    name = "sideways"

    def build_reference(self):
        return Sideways()

    def build_port(self, dtype):
        raise NotImplementedError

    def make_inputs(self):
        return {"x": np.ones((4, 7, 24), np.float32)}


def products(function, *arguments):
    with torch.autograd.profiler.profile() as profile:
        function(*arguments)
    return {event.name for event in profile.function_events} & {"aten::mm", "aten::bmm"}


def test_a_run_that_records_calls_has_the_kernels_of_one_that_does_not():
    case, runner = SidewaysCase(), TorchRunner()
    runner.load(case, PRECISIONS["fp32"], Sideways().state_dict())
    arrays = case.make_inputs()
    plain = products(runner.run, arrays)
    assert plain
    assert products(runner.record, arrays) == products(runner.run_tapped, arrays) == plain
