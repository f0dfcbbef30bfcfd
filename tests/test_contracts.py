"""The contracts of import-linter hold, and each refuses an import that it forbids."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.locations import ROOT

# One process makes the fixtures of this module.
pytestmark = pytest.mark.xdist_group("contracts")

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
CONTRACTS = [contract["id"] for contract in SETTINGS["contracts"]]
PORTABLE = ("tripy_portable", "mlir_tensorrt", "tensorrt")

# For each contract, files and the imports that break it, each on its own.
VIOLATIONS: dict[str, list[tuple[str, str]]] = {
    "no_circles": [
        ("kernels/dlrm/tables.py", "from kernels.dlrm.bags import embedding_bags"),
        ("tripy_portable/ir/context.py", "def later():\n    from tripy_portable.ir.operations import Block"),
        ("reference/dlrm.py", "from reference.dlrm_sample_run import main"),
        ("perf_model/models.py", "from perf_model.measure.timing import GraphTimer"),
        ("cases/hstu/dense.py", "from cases.hstu.case import HSTUCase"),
        ("parity/case/reference.py", "from parity.case.model import Case"),
    ],
    "datasets": [
        ("datasets/movielens.py", "from parity.base.errors import UserError"),
        ("datasets/movielens.py", "import torch"),
    ],
    "configs": [("configs/loading.py", "import torch"), ("configs/loading.py", "import reference.build")],
    "reference": [
        ("reference/hstu_dense.py", "import nvtripy"),
        ("reference/train.py", "from parity.base.errors import UserError"),
    ],
    "reference_datasets": [("reference/hstu_dense.py", "from datasets.movielens import read_movielens")],
    "tripy_port": [
        ("tripy_port/hstu_dense.py", "import torch"),
        ("tripy_port/hstu_fused.py", "from kernels.plugins.registration import known"),
        ("tripy_port/hstu_dense.py", "from reference.hstu_dense import HSTUDenseModel"),
    ],
    "kernels": [
        ("kernels/hstu_attention/layout.py", "import tensorrt"),
        ("kernels/hstu_forward/model.py", "from reference.hstu_dense import HSTUDenseModel"),
    ],
    "kernels_layers": [
        ("kernels/hstu_attention/eager.py", "from kernels.plugins.schema import HSTU_ATTENTION"),
        ("kernels/dlrm/forward.py", "from kernels.hstu_forward.model import HSTUForward"),
        ("kernels/unlisted.py", "import torch"),
    ],
    "kernels_schema": [("kernels/plugins/schema.py", "import torch")],
    "perf_model": [("perf_model/kernels.py", "from parity.case import Case")],
    "perf_model_general": [("perf_model/kernels.py", "from configs import CaseConfig")],
    "parity_models": [
        ("parity/verdict/rule.py", "from reference.hstu_dense import HSTUDenseModel"),
        ("parity/case/model.py", "def later():\n    from configs import load_case"),
        ("parity/cli/arguments.py", "from cases.registry import SHIPPED"),
        ("parity/timing/roofline.py", "from perf_model.kernels import KernelModel"),
    ],
    "parity_layers": [
        ("parity/base/errors.py", "from parity.case import Case"),
        ("parity/case/model.py", "from parity.inputs.arrays import CaseInputs"),
        (
            "parity/capture/names.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import parity.verdict.rule",
        ),
        ("parity/unlisted.py", "import torch"),
    ],
    "tables": [
        ("tables/store.py", "from configs import load_case"),
        ("tables/store.py", "from parity.verdict.rule import judge"),
    ],
    "tables_layers": [("tables/store.py", "from tables.local import MappedTables")],
    "cases": [("cases/configured.py", "from parity.cli.arguments import names")],
    "portable": [("tripy_portable/planner.py", "from parity.base.errors import UserError")],
    "portable_stand_ins": [("tripy_portable/planner.py", "import mlir_tensorrt")],
    "portable_layers": [
        ("tripy_portable/ir/types.py", "from tripy_portable.program import Program"),
        ("tripy_portable/unlisted.py", "import torch"),
    ],
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all packages, side by side."""
    copy = tmp_path_factory.mktemp("checkout")
    shutil.copy(ROOT / "pyproject.toml", copy)
    for package in SETTINGS["root_packages"]:
        source = ROOT / "portable" / "src" / package if package in PORTABLE else ROOT / package
        ignored = shutil.ignore_patterns("__pycache__", "*.json", "*.yaml")
        shutil.copytree(source, copy / package, ignore=ignored)
    return copy


OPTIONS = ("--no-cache", "--no-logo")
SERVER = """
import contextlib, io, json, sys
from importlinter.cli import lint_imports_command
for line in sys.stdin:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            code = lint_imports_command(json.loads(line), standalone_mode=True)
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, text.getvalue()]), flush=True)
"""
"""Runs the linter for each line of arguments: its imports take as long as the contract."""


@pytest.fixture(scope="module")
def linted(checkout: Path) -> Iterator[Callable[..., tuple[int, str]]]:
    """`linted("--contract", "datasets")` is the exit code and the text of the linter on the copy."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(
        command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:

        def run(*arguments: str) -> tuple[int, str]:
            server.stdin.write(json.dumps([*OPTIONS, *arguments]) + "\n")
            server.stdin.flush()
            code, text = json.loads(server.stdout.readline())
            return code, text

        yield run


def test_the_contracts_hold(linted):
    code, text = linted()
    assert code == 0, text
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in text


def test_every_contract_has_a_violation():
    assert set(VIOLATIONS) == set(CONTRACTS)


@pytest.mark.parametrize(
    ("contract", "path", "source"),
    [(contract, *violation) for contract, violations in VIOLATIONS.items() for violation in violations],
)
def test_a_violation_is_refused(checkout, linted, contract, path, source):
    file = checkout / path
    before = file.read_text() if file.exists() else None
    try:
        file.write_text(f"{before or ''}\n{source}\n")
        code, text = linted("--contract", contract)
    finally:
        file.unlink() if before is None else file.write_text(before)
    assert code == 1, text
    assert "0 kept, 1 broken" in text
