"""The installed engine: a wheel in a folder of its own, used outside this repository."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.locations import ROOT
from tests.parity.cli.completions import bash_completions

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("installed")]

PROGRAM = """
import nvtripy as tp
import torch

import parity


class Port(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.first = tp.Linear(6, 4, dtype=dtype)

    def forward(self, x):
        return tp.relu(self.first(x))


class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 4)

    def forward(self, x):
        return torch.relu(self.first(x))


if __name__ == "__main__":
    result = parity.compare(Reference(), Port, inputs={"x": torch.randn(64, 6)}, precisions=("fp32",))
    print(result)
    print(parity.__file__)
    result.raise_if_failed()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy: a build writes into its folder."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "README.md", "requirements-engine.txt"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "parity", source / "parity", ignore=shutil.ignore_patterns("__pycache__"))
    _run("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", built, source, cwd=built)
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The folder of the installed wheel. Its requirements are those of this environment."""
    folder = tmp_path_factory.mktemp("site")
    _run("-m", "pip", "install", "--no-deps", "--no-index", "--target", folder, wheel, cwd=folder)
    return folder


def _run(*arguments, cwd, site: Path | None = None):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if site is not None:
        environment["PYTHONPATH"] = str(site)
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=True, timeout=600
    )


def test_the_wheel_holds_the_engine_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
        (facts,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    assert {top for top in tops if not top.endswith(".dist-info")} == {"parity"}
    lines = (ROOT / "requirements-engine.txt").read_text().splitlines()
    asked = re.findall("^Requires-Dist: (\\S+?)[<>=](?!.*; extra ==)", facts, re.MULTILINE)
    assert asked == [re.split("[<>=]", line)[0] for line in lines if not line.startswith("#")]


def test_two_models_are_compared_outside_of_the_repository(installed, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    out = _run(program, cwd=tmp_path, site=installed).stdout
    assert "PASS" in out
    assert str(installed) in out


def test_the_program_runs_a_new_case(installed, tmp_path):
    program = installed / "bin" / "parity"
    assert "replay" in _run(program, "--help", cwd=tmp_path, site=installed).stdout
    _run(program, "new", "mine", cwd=tmp_path, site=installed)
    out = _run(
        program, "run", "--model", "mine:case", "--precision", "fp32", cwd=tmp_path, site=installed
    ).stdout
    assert "PASS" in out
    # The port alone is asked, and the inputs ask all of it.
    assert "asked: all" in out
    assert "not asked" not in out
    assert (tmp_path / "parity_reports").is_dir()


def test_bash_completes_the_program(installed, tmp_path):
    path = f"{installed / 'bin'}{os.pathsep}{os.environ['PATH']}"
    offered = bash_completions("parity", tmp_path, PATH=path, PYTHONPATH=str(installed))
    assert offered("s") == ["shrink", "self-test", "stream", "serve"]
    assert offered("run", "--runners", "torch,tripy_j") == ["torch,tripy_jagged"]
    assert offered("--ca") == ["--case"]


def test_pytest_has_the_plugin(installed, tmp_path):
    (tmp_path / "test_port.py").write_text("def test_port(parity):\n    assert callable(parity.check)\n")
    out = _run("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=tmp_path, site=installed).stdout
    assert "1 passed" in out
