"""The plain command proves every default case in every default precision."""

import subprocess
import sys

import pytest

from cases.registry import SHIPPED
from parity.report.files import read_report
from tests.locations import ROOT


@pytest.mark.full
def test_the_plain_command_passes(tmp_path):
    """In a process of its own: models may keep constants of their first run for all later ones."""
    done = subprocess.run(
        [sys.executable, ROOT / "run_parity.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    (path,) = tmp_path.glob("parity_reports/*/report.json")
    report = read_report(path)
    assert {run.case.name for run in report.cases} == {case.name for case in SHIPPED.cases() if case.default}
    verdicts = {runner.verdict for run in report.cases for own in run.precisions for runner in own.runners}
    assert verdicts <= {"PASS", "NONE"}
