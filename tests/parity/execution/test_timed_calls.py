"""Recorded calls that a runner's process times: on a GPU their arguments are put in place once."""

import pytest
import torch

from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture
from parity.capture.store import save_capture
from parity.execution.commands import Commands
from parity.inputs import weights
from parity.inputs.arrays import make_inputs, save
from parity.runners.torch.eager import TorchRunner


@pytest.fixture
def timed(tmp_path):
    """The reference's commands, the paths of inputs and calls, and the taps that it put in place."""
    case = load_case("dlrm_tiny")
    tensors, _ = weights.case_weights(case, None)
    weights.export(tensors, tmp_path / "weights")
    inputs = make_inputs(case).typical
    save(inputs, tmp_path / "inputs.safetensors")
    placed = []

    class Counting(TorchRunner):
        def timed_call(self, call, inputs, arrays):
            placed.append(call.tap)
            return super().timed_call(call, inputs, arrays)

    runner = Counting(torch.device("cpu"))
    commands = Commands("torch")
    commands._started = runner
    commands.load(case.reference, PRECISIONS["fp32"], tmp_path / "weights")
    capture = Capture()
    runner.record(inputs.arrays, capture)
    save_capture(capture, tmp_path / "tapped")
    return commands, (tmp_path / "inputs.safetensors", tmp_path / "tapped"), placed


@pytest.mark.parametrize("on_gpu", [False, True])
def test_arguments_are_put_in_place_once_on_a_gpu_and_at_each_round_on_a_processor(
    on_gpu, timed, monkeypatch
):
    commands, paths, placed = timed
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    commands.prepare_timing(*paths)
    assert bool(placed) == on_gpu
    times = [commands.time_calls(*paths, 2) for _ in range(2)]
    assert all(len(seconds) == 2 for seconds in times[0].values())
    assert times[0].keys() == times[1].keys() == set(placed)
    assert len(placed) == len(times[0]) * (1 if on_gpu else 2)
    assert commands.time_call_replays(*paths, 2) == {}
