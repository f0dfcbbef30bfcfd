"""Folders of failures of own cases: code in several places, other names and layouts of weights."""

import runpy
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from parity.base.precision import PRECISIONS
from parity.case import CaseReference, load_case
from parity.studies.packages import packages_of
from parity.studies.shrink import shrink, write

LAYERS = """
import torch
import nvtripy as tp

class Joined(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.both = torch.nn.Parameter(torch.randn(6, 20))

    def forward(self, x):
        left, right = (x @ self.both).split(10, -1)
        return left * torch.sigmoid(right)

class Parts(tp.Module):
    def __init__(self, dtype, factor):
        super().__init__()
        self.factor = factor
        self.left = tp.Linear(6, 10, bias=False, dtype=dtype)
        self.right = tp.Linear(6, 10, bias=False, dtype=dtype)

    def forward(self, x):
        return self.left(x) * tp.sigmoid(self.right(x)) * self.factor
"""
MODELS = """
import torch
import nvtripy as tp
from own_layers.gate import Joined, Parts

class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Joined()
        self.head = torch.nn.Linear(10, 3)

    def forward(self, x):
        return self.head(self.gate(x))

class Port(tp.Module):
    def __init__(self, dtype, factor=1.0, scale=1.0):
        super().__init__()
        self.scale = scale
        self.mixer = Parts(dtype, factor)
        self.out = tp.Linear(10, 3, dtype=dtype)

    def forward(self, rows):
        return self.out(self.mixer(rows) * self.scale)

class Row(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scaled = Scaled()

    def forward(self, x):
        return self.scaled(x.float())

class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x.to(self.layer.weight.dtype)).float() * x.sum(-1, keepdim=True)

class ScaledPort(tp.Module):
    # It takes a row with another leading axis than the reference, and in float32.

    def __init__(self, dtype):
        super().__init__()
        self.layer = tp.Linear(6, 3, dtype=dtype)

    def forward(self, x_1BD):
        x_BD = tp.squeeze(x_1BD, dims=(0,))
        layer = tp.cast(self.layer(tp.cast(x_BD, self.layer.weight.dtype)), tp.float32)
        return layer * tp.sum(x_BD, dim=-1, keepdim=True) * 1.01

class RowPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.scaled = ScaledPort(dtype)

    def forward(self, x):
        return self.scaled(tp.unsqueeze(tp.cast(x, tp.float32), 0))
"""
CASES = """
import numpy as np
import parity
from own_models import Port, Reference, Row, RowPort

WEIGHTS = {
    f"mixer.{name}.weight": parity.From("gate.both", split=(part, 2), axis=1, transpose=True)
    for part, name in enumerate(("left", "right"))
}
X = {"x": np.random.default_rng(0).standard_normal((7, 6)).astype(np.float32)}
OPTIONS = {"names": {"mixer": "gate", "out": "head"}, "weights": WEIGHTS}
module = parity.ModelPair(Reference(), lambda dtype: Port(dtype, factor=1.01), X, name="module", **OPTIONS)
model = parity.ModelPair(Reference(), lambda dtype: Port(dtype, scale=1.01), X, name="model", **OPTIONS)
squeezed = parity.ModelPair(Row(), RowPort, X, name="squeezed", squeeze=True)
"""


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """A folder on Python's path with two modules and a package without `__init__.py`."""
    (tmp_path / "own_layers").mkdir()
    (tmp_path / "own_layers" / "gate.py").write_text(LAYERS)
    (tmp_path / "own_models.py").write_text(MODELS)
    (tmp_path / "own_cases.py").write_text(CASES)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("own_cases", "own_models", "own_layers", "own_layers.gate"):
        sys.modules.pop(name, None)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def _without_a_tensor(path):
    content = load_file(path)
    content.pop(min(content))
    save_file(content, path)


def _with_nan(path):
    content = load_file(path)
    name = next(name for name, tensor in sorted(content.items()) if tensor.is_floating_point())
    content[name].view(-1)[0] = torch.nan
    save_file(content, path)


DAMAGES = {
    "missing": (lambda path: path.unlink(), "{field}: {path} cannot be read (No such file or directory)"),
    "empty": (lambda path: path.write_bytes(b""), "{field}: {path} is cut short or not safetensors ("),
    "cut": (_cut, "{field}: {path} is cut short or not safetensors ("),
    "a tensor less": (_without_a_tensor, "{field}: {path} is not as it was written"),
    "nan": (_with_nan, "{field}['"),
}


def test_damaged_data_of_a_folder_are_no_verdict(own_code, tmp_path, monkeypatch, capsys):
    """One line that names the file, and exit code 2, which no failure has."""
    failure = shrink(load_case(CaseReference(target="own_cases:module")), PRECISIONS["fp32"], lambda _: None)
    folder = tmp_path / "small"
    write(failure, folder)
    files = [folder / f"{name}.safetensors" for name in ("weights", "inputs", "expected")]
    damages = [(path, *damage) for path in files for damage in DAMAGES.values()]
    damages.append((folder / "problem.json", _cut, "{field}: {path} is not as it was written"))
    for path, damage, message in damages:
        whole = path.read_bytes()
        damage(path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(folder / "reproduce.py"), run_name="__main__")
        path.write_bytes(whole)
        out, err = capsys.readouterr()
        (line,) = err.splitlines()
        assert (ended.value.code, out) == (2, "")
        assert line.startswith(f"error: {message.format(field=path.stem, path=path)}"), line
        assert damage is not _with_nan or "is nan at [0" in line
        assert line.endswith("; restore it, or shrink again")


def test_the_packages_of_a_case_are_what_it_imports_and_not_the_installed_ones(own_code):
    case = load_case(CaseReference(target="own_cases:module"))
    assert packages_of(case) == {"parity", "own_cases", "own_models", "own_layers"}


@pytest.mark.parametrize("name", ["module", "model"])
def test_the_folder_of_an_own_case_fails_alone(own_code, name, tmp_path):
    case = load_case(CaseReference(target=f"own_cases:{name}"))
    failure = shrink(case, PRECISIONS["fp32"], lambda _: None)
    assert failure.call.path == {"module": "gate", "model": ""}[name]
    folder = tmp_path / "small"
    write(failure, folder)
    assert (folder / "own_layers" / "gate.py").read_text() == LAYERS
    command = [sys.executable, "-I", folder / "reproduce.py"]
    result = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (1, "")
    assert "times 1.01" in result.stdout if name == "module" else "the whole model" in result.stdout


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_module_gets_its_arguments_in_the_port_s_form(own_code, precision, tmp_path):
    """In float32 in a run of a half type, and with another leading axis."""
    case = load_case(CaseReference(target="own_cases:squeezed"))
    failure = shrink(case, PRECISIONS[precision], lambda _: None)
    assert failure.call.path == "scaled"
    folder = tmp_path / "small"
    write(failure, folder)
    command = [sys.executable, "-I", folder / "reproduce.py"]
    result = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (1, "")
    measured = [float(line.split()[1].rstrip(",")) for line in result.stdout.splitlines()[1:4]]
    assert measured[2] == pytest.approx(failure.verdict.port.scale_error, rel=1e-3)
