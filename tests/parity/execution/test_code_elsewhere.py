"""A saved run of a case that finds its models by itself goes on, and only while their code is unchanged."""

import os
import subprocess
import sys

from parity.execution.done import done_code
from parity.execution.folder import RunFolder
from tests.locations import ROOT
from tests.parity.saved_runs import QUICK_PROGRAM

CASE = """
import importlib.util
import sys
from pathlib import Path
import numpy as np
import parity

ELSEWHERE = Path(__file__).parent / "elsewhere"
sys.path.insert(0, str(ELSEWHERE / "first"))
import reference_on_path

class Finding(parity.Case):
    name = "finding"
    batch_size = 3

    def build_reference(self):
        return reference_on_path.Reference()

    def build_port(self, dtype):
        sys.path.insert(0, str(ELSEWHERE / "second"))
        import factor_of_late
        spec = importlib.util.spec_from_file_location("port_of_file", ELSEWHERE / "port.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.Port(dtype, factor_of_late.FACTOR)

    def make_inputs(self):
        rng = np.random.default_rng(self.seed)
        return {"x": rng.standard_normal((self.batch_size, 4)).astype(np.float32)}
"""
REFERENCE = """
import torch

class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.lin(x)
"""
PORT = """
import nvtripy as tp

class Port(tp.Module):
    def __init__(self, dtype, factor):
        super().__init__()
        self.factor = factor
        self.lin = tp.Linear(4, 3, dtype=dtype)

    def forward(self, x):
        return self.lin(x) * self.factor
"""
FILES = {
    "finding_case.py": CASE,
    "elsewhere/first/reference_on_path.py": REFERENCE,
    "elsewhere/second/factor_of_late.py": "FACTOR = 1.0\n",
    "elsewhere/port.py": PORT,
}
NAMES = {"finding_case", "reference_on_path", "factor_of_late", "port_of_file"}


def _parity(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-c", QUICK_PROGRAM, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run_goes_on_however_its_case_finds_its_models(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    options = ("--precision", "fp32", "--runners", "tripy", "--save", "run")
    ended = _parity(tmp_path, "--model", "finding_case:Finding", *options)
    assert ended.returncode == 0, ended.stderr
    folder = RunFolder(tmp_path / "run")
    for batch in folder.done():
        assert done_code(batch, "resume").keys() - {"parity"} >= NAMES
    folder.manifest.unlink()
    ended = _parity(tmp_path, "resume", "run")
    assert ended.returncode == 0, ended.stderr
    folder.manifest.unlink()
    for name in list(FILES)[1:]:
        (tmp_path / name).write_text(f"{FILES[name]}# another state\n")
    ended = _parity(tmp_path, "resume", "run")
    assert ended.returncode == 2
    changed = ", ".join(sorted(NAMES - {"finding_case"}))
    assert f"run has results of other code ({changed} changed since)" in ended.stderr
