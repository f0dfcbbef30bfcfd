"""Rows in other batches of a runner without taps: its outputs are compared."""

import pytest
import torch

from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.capture.rows import Trial
from parity.capture.slices import MemoryBudget
from parity.execution.commands import Commands
from parity.inputs import weights
from parity.inputs.arrays import make_inputs, save
from parity.runners.torch.eager import TorchModel

OUTPUT = "predict.click"


class Outputs(TorchModel):
    """The reference without taps."""

    def label(self):
        return "outputs"


class Centred(Outputs):
    """The same, less the mean of the batch."""

    def _entry(self, arguments):
        return {name: tensor - tensor.mean(0) for name, tensor in super()._entry(arguments).items()}


@pytest.fixture
def differences(tmp_path):
    """`differences(runner)`: the differences of rows by kind of trial."""
    case = load_case("dlrm_tiny")
    tensors, _ = weights.case_weights(case, None)
    weights.export(tensors, tmp_path / "weights")
    save(make_inputs(case).typical, tmp_path / "inputs.safetensors")

    def run(runner):
        commands = Commands("outputs")
        commands._started = runner
        commands.load(case.reference, PRECISIONS["fp32"], tmp_path / "weights")
        inputs, stem = tmp_path / "inputs.safetensors", tmp_path / "untapped"
        commands.run(inputs, stem)
        trials = commands.run_row_trials(inputs, stem, MemoryBudget(), None)
        return {trial.kind: trial.taps.get(OUTPUT) for trial in trials}

    return run


def test_a_model_with_independent_rows_differs_by_rounding_at_most(differences):
    taps = differences(Outputs(torch.device("cpu")))
    assert set(taps) == {kind.value for kind in Trial}
    assert taps[Trial.AGAIN.value] is None
    assert all(max(tap or [0.0]) < 1e-6 for tap in taps.values())


def test_outputs_that_depend_on_the_batch_differ(differences):
    taps = differences(Centred(torch.device("cpu")))
    for kind in (Trial.ALONE, Trial.SMALL):
        assert max(taps[kind.value]) > 1e-3
    assert taps[Trial.AGAIN.value] is None
