"""`parity.compare` judges live models as a run of the command judges a case."""

import json
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity.api import _line, details
from parity.verdict.notes import INSIDE_ALONE
from tests.parity.live_models import IMAGES, Net, Port


def values(model):
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


def test_a_right_port_passes_in_two_precisions_and_writes_its_report(tmp_path):
    model = Net()
    before, threads = values(model), torch.get_num_threads()
    result = parity.compare(model, Port, inputs=IMAGES)
    assert result.passed, result
    result.raise_if_failed()
    lines = str(result).splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("Net")] == [
        "Net fp32 PASS",
        "Net fp16 PASS",
    ]
    assert "    note: act (ReLU): the port has no module of this path" in lines
    assert "    note: drop (Dropout): returns its input in evaluation" in lines
    # The model and the settings of the process are as before.
    assert values(model) == before
    assert torch.get_num_threads() == threads
    folder = result.write(tmp_path / "out")
    report = json.loads((folder / "report.json").read_text())
    assert report["exit_code"] == 0
    assert report["cases"][0]["case"]["name"] == "Net"
    taps = {module["tap"] for module in report["cases"][0]["precisions"][0]["runners"][1]["modules"]}
    assert {"conv", "norm", "head", "forward.output"} <= taps
    assert "<html" in (folder / "report.html").read_text()
    ElementTree.parse(folder / "report.junit.xml")
    # The next comparison takes the place of this one, and of no other report.
    result.write(folder)
    (folder / "report.json").write_text(json.dumps(report | {"command": "python run_parity.py"}))
    with pytest.raises(parity.UserError, match="out"):
        result.write(folder)


@pytest.mark.parametrize("value", [None, "1"])
def test_a_comparison_leaves_the_switch_of_the_portable_runtime_to_its_caller(value, monkeypatch):
    if value is None:
        monkeypatch.delenv("TRIPY_PORTABLE_TF32", raising=False)
    else:
        monkeypatch.setenv("TRIPY_PORTABLE_TF32", value)
    assert parity.compare(Net(), Port, inputs=IMAGES, precisions=("fp32",)).passed
    assert os.environ.get("TRIPY_PORTABLE_TF32") == value


@pytest.mark.parametrize("name", ["report.json", "report.html", "report.junit.xml", "report.md"])
def test_a_report_replaces_no_file_of_others(tmp_path, name):
    result = parity.compare(Net(), Port, inputs=IMAGES, precisions=("fp32",))
    (tmp_path / name).write_text("mine")
    with pytest.raises(parity.UserError, match=f"report: .*{name} is no"):
        result.write(tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


@pytest.mark.parametrize("folder", [None, 3, "", b"out"])
def test_a_report_needs_the_path_of_a_folder(folder):
    result = parity.compare(Net(), Port, inputs=IMAGES, precisions=("fp32",))
    with pytest.raises(parity.UserError, match="folder: .* is no path; give the path of a folder"):
        result.write(folder)


def test_a_wrong_port_fails_and_names_the_place():
    result = parity.compare(
        Net(), lambda dtype: Port(dtype, negative_slope=0.1), inputs=IMAGES, precisions=("fp32",)
    )
    assert not result.passed
    with pytest.raises(parity.ParityError, match="the port does not pass") as caught:
        result.raise_if_failed()
    text = str(caught.value)
    assert "Net fp32 FAIL at head" in text
    assert "where: head" in text
    assert "input" in text  # the wrong argument of the module behind the function


class WrongNorm(Port):
    def __init__(self, dtype):
        super().__init__(dtype)
        self.norm = tp.GroupNorm(2, 8, dtype=dtype, eps=1e-2)


def test_a_wrong_module_is_the_culprit():
    result = parity.compare(Net(), WrongNorm, inputs=IMAGES, precisions=("fp32",))
    assert "Net fp32 FAIL at norm" in str(result)
    assert "where: norm (GroupNorm) diverges on its own" in str(result)


def test_a_tripy_model_has_its_own_precision_and_keeps_its_weights():
    port = Port()
    weight = tp.ones((5, 8))
    port.head.weight = weight
    result = parity.compare(Net(), port, inputs=IMAGES)
    assert result.passed, result
    assert [precision.precision for precision in result.report.cases[0].precisions] == ["fp32"]
    assert port.head.weight is weight
    with pytest.raises(
        parity.UserError, match="precisions: fp16 is not the precision of the Tripy model, fp32"
    ):
        parity.compare(Net(), port, inputs=IMAGES, precisions=("fp32", "fp16"))


def test_tensors_constants_and_other_parameter_names_are_inputs():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x, factor):
            return self.layer(x) * factor

    class ScaledPort(tp.Module):
        def __init__(self, dtype):
            super().__init__()
            self.layer = tp.Linear(4, 3, dtype=dtype)

        def forward(self, values, by):
            return self.layer(values) * by

    inputs = {"x": torch.randn(32, 4, generator=torch.Generator().manual_seed(0)), "factor": 2.0}
    result = parity.compare(Scaled, ScaledPort, inputs=inputs, name="scaled")
    assert result.passed, result
    assert str(result).startswith("scaled fp32 PASS")


def test_notes_of_repeated_modules_share_a_line():
    paths = ("blocks.0.act", "blocks.1.act", "act")
    modules = [
        SimpleNamespace(path=p, tap=p, kind="ReLU", gap="is absent", notes=(), verdicts={}) for p in paths
    ]
    extra = ("blocks.0.q", "blocks.1.q", "head.q", "a.k", "b.k", "c.k")
    modules += [
        SimpleNamespace(path=p, tap=p, kind="unknown", gap="none", notes=(), verdicts={}) for p in extra
    ]
    assert details(SimpleNamespace(modules=modules, diagnosis=None)) == [
        "note: blocks.*.act, act (3 ReLU modules): is absent",
        "note: blocks.*.q, head.q, a.k, ... (6 modules, in the port alone): none",
    ]
    assert details(SimpleNamespace(modules=modules[2:6], diagnosis=None)) == [
        "note: act (ReLU): is absent",
        "note: blocks.*.q, head.q (3 modules, in the port alone): none",
    ]


@pytest.mark.parametrize(
    ("output", "end"),
    [
        (0.18, "would fail, and of 0.002 in each module"),
        (0.005, "any relative error of 0.005 would fail"),
        (0.001, "any relative error of 0.002 would fail"),
    ],
)
def test_modules_that_detect_more_than_a_coarse_output_are_told(output, end):
    """Rounding adds up at the outputs: a large number there does not say that a module may be wrong."""
    modules = [
        SimpleNamespace(tap="a", kind="Linear", verdicts={"": 1}, margin=0.5, min_detectable_error=0.002),
        SimpleNamespace(tap="forward.x", kind="model output", verdicts={"": 1}, margin=0.2),
    ]
    modules[1].min_detectable_error = output
    assert _line(SimpleNamespace(verdict="PASS", modules=modules)).endswith(end)


def test_what_an_insensitive_runner_detects_is_said_once():
    """Its diagnosis says it."""
    module = SimpleNamespace(tap="a", kind="Linear", verdicts={"": 1}, margin=0.5)
    module.min_detectable_error = 0.0104
    line = "1 modules and outputs; at most 0.5 of its limit, at a"
    assert _line(SimpleNamespace(verdict="INSENSITIVE", modules=[module])) == f"INSENSITIVE: {line}"
    told = f"PASS: {line}; any relative error of 0.0104 would fail"
    assert _line(SimpleNamespace(verdict="PASS", modules=[module])) == told


def test_modules_that_are_judged_inside_the_model_alone_have_two_lines_and_a_count():
    names = {"blocks.0.attn": "k", "blocks.1.attn": "k", "head": "m", "tail": "n", "gate": "o"}
    modules = [
        SimpleNamespace(
            path=path,
            tap=path,
            kind="Mix",
            gap="",
            notes=(f"{INSIDE_ALONE}: q is {name}", "a fact"),
            verdicts={},
        )
        for path, name in names.items()
    ]
    shown = [
        "note: blocks.*.attn (2 Mix modules): judged inside the model alone: q is k",
        "note: head (Mix): judged inside the model alone: q is m",
    ]
    # A module has the note at each output.
    assert details(SimpleNamespace(modules=[*modules[:3], modules[2]], diagnosis=None)) == shown
    (*_, last) = details(SimpleNamespace(modules=modules[:4], diagnosis=None))
    assert last == "note: 1 more note on modules judged inside the model alone; the written report lists them"
    assert details(SimpleNamespace(modules=modules, diagnosis=None)) == [
        *shown,
        "note: 2 more notes on modules judged inside the model alone; the written report lists them",
    ]


class Payloads(torch.nn.Module):
    """Takes nested inputs, returns a dictionary, and calls its layer with arguments that nobody reads."""

    class Layer(torch.nn.Linear):
        def forward(self, x, cache=None, positions=None):
            return (super().forward(x), cache)

    def __init__(self):
        super().__init__()
        self.layer = self.Layer(4, 3)

    def forward(self, x, payloads):
        y, cache = self.layer(x, cache=None, positions=torch.arange(3))
        return {"y": y * payloads["times"][0] + payloads["shift"], "cache": cache}


class PayloadsPort(tp.Module):
    def __init__(self, dtype, times=1.0):
        super().__init__()
        self.layer, self.times = tp.Linear(4, 3, dtype=dtype), times

    def forward(self, x, payloads):
        return self.layer(x) * payloads["times"][0] * self.times + payloads["shift"]


def test_inputs_may_be_nested_and_outputs_in_containers():
    generator = torch.Generator().manual_seed(0)
    x, times = torch.randn(32, 4, generator=generator), torch.randn(32, 1, generator=generator)
    inputs = {"x": x, "payloads": {"times": [times], "shift": 0.5}}
    result = parity.compare(Payloads, PayloadsPort, inputs=inputs, precisions=("fp32",))
    assert result.passed, result
    assert "PASS: 2 modules and outputs" in str(result)
    wrong = parity.compare(
        Payloads, lambda dtype: PayloadsPort(dtype, 1.01), inputs=inputs, precisions=("fp32",)
    )
    assert not wrong.passed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"port": 3}, "port: 3 is no nvtripy.Module; give a Tripy model"),
        ({"port": Net()}, "torch_model: Net is the port; give the PyTorch model first"),
        ({"torch_model": Port, "port": Net()}, "torch_model: Port is the port; give the PyTorch"),
        ({"port": lambda a, b: None}, "needs a, b; give a function of the type alone"),
        (
            {"port": lambda: 3},
            "is no nvtripy.Module: the function returns a value of type int; return the nvt",
        ),
        ({"torch_model": 3}, "torch_model: 3 is no torch.nn.Module"),
        (
            {"torch_model": lambda: 3},
            "torch_model: 3 is no torch.nn.Module: the function returns a value of",
        ),
        ({"inputs": [1]}, "inputs: list is no dictionary"),
        ({"inputs": {}}, "has no array"),
        ({"inputs": {"image": {1.0}}}, "inputs: {'image': {1.0}} has no array"),
        (
            {"inputs": {"image": [{"a": tp.ones((2, 3))}]}},
            "inputs['image.0.a']: Tensor is an array of another library",
        ),
        ({"inputs": {"image": np.zeros((0, 3))}}, "inputs['image']: (0, 3) has no element"),
        ({"precisions": "fp32"}, "precisions: fp32 is no sequence of names"),
        ({"precisions": ("fp33",)}, "precisions: fp33 is not known; did you mean 'fp32'?"),
        ({"precisions": ("tf32",)}, "precisions: tf32 needs a process of its own"),
        ({"runners": ("tripi",)}, "runners: tripi is not known"),
        ({"name": "two words"}, "name: two words is no name"),
        (
            {"inputs": {"picture": IMAGES["image"]}},
            "inputs: picture do not fit forward(image) (missing a required",
        ),
        ({"entry": "score"}, "entry: score is no method of the PyTorch model; name one of its methods"),
        ({"entri": "forward"}, "option: entri is not known; did you mean 'entry'?"),
        ({"precision": ("fp32",)}, "option: precision is not known; did you mean 'precisions'?"),
    ],
)
def test_bad_use_names_the_field_and_the_fix(changes, message):
    arguments = {"torch_model": Net(), "port": Port, "inputs": IMAGES, "precisions": ("fp32",)} | changes
    with pytest.raises(parity.UserError) as caught:
        parity.compare(**arguments)
    assert message in str(caught.value)


class Raising(Port):
    def forward(self, image):
        return self.conv(image) @ tp.ones((3, 3))


def test_an_error_of_the_port_has_nvtripy_s_message():
    text = str(parity.compare(Net(), Raising, inputs=IMAGES, precisions=("fp32",)))
    assert "Net fp32 FAIL at the whole model" in text
    assert "the run with taps raises TripyException: 'tensorrt.matrix_multiply' op operand shapes" in text
    assert f"{Path(__file__).name}:{Raising.forward.__code__.co_firstlineno + 1} in forward)" in text


class Broken(Net):
    def forward(self, image):
        raise ValueError("no weights yet")


def test_an_error_of_the_reference_is_one_line():
    """No runner is judged without the reference, so that no other line says more."""
    result = parity.compare(Broken(), Port, inputs=IMAGES, precisions=("fp32",))
    assert not result.passed
    line = f"{Path(__file__).name}:{Broken.forward.__code__.co_firstlineno + 1} in forward)"
    assert str(result).startswith("Broken fp32 ERROR in torch: ValueError: no weights yet (")
    assert str(result).endswith(line)


def test_a_live_case_cannot_be_replayed():
    with pytest.raises(
        parity.UserError, match="holds objects of an earlier process; compare the models again"
    ):
        parity.load_case(parity.CaseReference(target="", name="Net"))
