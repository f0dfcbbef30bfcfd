"""Faults made by hand: a scratch copy of the project, one edit in it, and the run that a user types."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cases.configured import ConfiguredCase
from parity.capture.names import TapName
from parity.report.files import read_report
from parity.report.schema import Report, RunnerReport
from parity.studies.fault_injection.handwritten import Edit
from tests.locations import ROOT

HANDWRITTEN = ROOT / "cases/faults/handwritten.yaml"
RUNNER = "parity/runners/tripy/modules.py"
TENSORS = "        tensors = rounded(weights, self.dtype)\n"


@dataclass(frozen=True)
class Fault:
    """One edit, the case that it is run on, and the tap that must be named."""

    name: str
    file: str
    old: str
    new: str
    named: str
    case: str = "hstu_tiny"

    @classmethod
    def of(cls, edit: Edit) -> Fault:
        """A fault of the campaign's catalogue."""
        file = f"{edit.module.replace('.', '/')}.py"
        return cls(edit.detail, file, edit.old, edit.new, edit.named, edit.case)


def on_weights(statement: str) -> str:
    """The line that rounds the port's weights, and a change to them."""
    return f"{TENSORS}        {statement}\n"


def copied(folder: Path) -> Path:
    """A copy of the files that a run needs."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("parity", *ConfiguredCase.packages):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copy(ROOT / "run_parity.py", folder)
    return folder


def scratch(folder: Path, file: str, old: str, new: str) -> Path:
    """A copy of the files that a run needs, with one edit."""
    return edited(copied(folder), file, old, new)


def edited(folder: Path, file: str, old: str, new: str) -> Path:
    """The folder, with one edit more."""
    text = (folder / file).read_text()
    assert text.count(old) == 1, f"{old!r} is not in {file} once: the fault cannot be made"
    (folder / file).write_text(text.replace(old, new))
    return folder


def run(folder: Path, *arguments: str) -> tuple[int, Report, str]:
    """Exit code, report and output. Not with --save, which exports to ONNX what no fault is in."""
    command = [sys.executable, "run_parity.py", "--precision", "fp32", *arguments]
    # With this variable Python looks for the project elsewhere, where no fault is.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    reports = sorted(folder.glob("parity_reports/*/report.json"))
    assert reports, done.stderr
    return done.returncode, read_report(reports[-1]), done.stdout


def runner(report: Report, name: str) -> RunnerReport:
    return next(entry for _, _, entry in report.runner_reports() if entry.runner == name)


def assert_found_and_named(fault: Fault, folder: Path, name: str = "tripy") -> None:
    """Exit code 1, and the module, on the screen and in the report."""
    scratch(folder, fault.file, fault.old, fault.new)
    assert_found_in(folder, fault, name)


def assert_found_in(folder: Path, fault: Fault, name: str) -> None:
    """Of a copy that has the fault: exit code 1, and the module, on the screen and in the report."""
    code, report, shown = run(folder, "--case", fault.case, "--runners", name)
    entry = runner(report, name)
    assert (code, report.exit_code) == (1, 1), shown
    assert entry.diagnosis.kind in ("module", "between")
    assert entry.diagnosis.tap == fault.named
    assert f"FAIL: {fault.case}, fp32" in shown
    assert str(TapName.parse(fault.named).module_call) in shown
