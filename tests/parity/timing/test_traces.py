"""Traces: one file a runner, every module a range named by its path."""

import json

import pytest
import torch
from click.testing import CliRunner

import run_parity
from cases.shipped import load_case
from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture
from parity.execution.commands import Commands
from parity.inputs import weights
from parity.inputs.arrays import make_inputs
from parity.runners import make_runner
from parity.timing.traces import WHOLE_MODEL


def ranges_in(path):
    """Ranges of a trace in order of their begin: name, begin and end."""
    events = json.loads(path.read_text())["traceEvents"]
    actual = [e for e in events if e.get("ph") == "X" and e.get("cat") == "user_annotation"]
    spans = sorted((e["ts"], -e["dur"], e["name"], e["ts"] + e["dur"]) for e in actual)
    return [(name, begin, end) for begin, _, name, end in spans]


def profiled(runner, arrays, recorded, path):
    """Write a trace of a loaded runner."""
    commands = Commands("torch")
    commands._started, commands._arrays, commands._captures = runner, {path: arrays}, {path: recorded}
    commands.profile(path, path, path)


@pytest.fixture(scope="module")
def loaded():
    """Runners of the small HSTU, and what the reference recorded."""
    case = load_case("hstu_tiny")
    tensors = weights.case_weights(case)[0]
    arrays = make_inputs(case).typical.arrays

    def load(name):
        runner = make_runner(name)
        runner.load(case, PRECISIONS["fp32"], tensors)
        return runner

    reference = load("torch")
    recorded = reference.record(arrays)
    return load, arrays, recorded


@pytest.mark.parametrize("name", ["torch", "torch_jagged"])
def test_modules_that_run_one_by_one_are_ranges_inside_the_model(name, loaded, tmp_path):
    load, arrays, recorded = loaded
    profiled(load(name), arrays, recorded, tmp_path / "trace.json")
    ((_, begin, end), *modules) = ranges_in(tmp_path / "trace.json")
    assert {name for name, _, _ in modules} == {c.path for c in recorded.calls if not c.appends}
    assert all(begin <= inner_begin <= inner_end <= end for _, inner_begin, inner_end in modules)
    spans = {name: (begin, end) for name, begin, end in modules}
    outer, inner = spans["_hstu._attention_layers.1"], spans["_hstu._attention_layers.1._attn"]
    assert outer[0] <= inner[0] <= inner[1] <= outer[1]


def test_modules_of_one_graph_run_behind_it_by_themselves(loaded, tmp_path):
    load, arrays, recorded = loaded
    runner = load("tripy")
    few = Capture(calls=recorded.calls[:3], call_inputs=recorded.call_inputs)
    for call in few.calls:
        runner.run_call(call, few.call_inputs, arrays)
    profiled(runner, arrays, few, tmp_path / "trace.json")
    ((name, _, end), *modules) = ranges_in(tmp_path / "trace.json")
    assert name == WHOLE_MODEL
    assert [name for name, _, _ in modules] == [call.tap for call in few.calls]
    assert all(end <= begin for _, begin, _ in modules)


@pytest.mark.full
def test_a_run_writes_one_trace_for_each_runner(tmp_path):
    folder = tmp_path / "traces"
    options = ["--case", "hstu_tiny", "--precision", "fp32", "--runners", "torch_jagged"]
    actual = CliRunner().invoke(run_parity.main, [*options, "--profile", str(folder)])
    assert actual.exit_code == 0, actual.output
    names = {path.name for path in folder.iterdir()}
    assert names == {"hstu_tiny.fp32.torch.json", "hstu_tiny.fp32.torch_jagged.json"}


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path, refused):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "traces"
    before = torch.cuda.is_initialized()
    assert refused("--case", "hstu_tiny", "--profile", folder).startswith("--profile: ")
    # Other tests of this process may have used it.
    assert torch.cuda.is_initialized() == before
