"""A sample of the independent faults of models, each through the command itself.

    python benchmarks/command_faults.py OUTPUT [--faults N]

Copies the project into a temporary folder, puts one fault after the other into the copy, and runs
`run_parity.py` there. The case and the precision are those of the fault's finding in
`independent_faults_findings.jsonl.gz`; all else is as in the plain command, short streams included.

Appends a line of JSON for each fault to the file OUTPUT: its name, case and precision, the exit code, and
the runners that fail with the module that their diagnosis names. With exit code 1 and no such runner, a
stream fails. Faults of OUTPUT are not run again. The order is that of a hash of the names: the first N are a
random sample.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from parity.base.strict_yaml import parse_yaml  # noqa: E402, the path comes first

FINDINGS = ROOT / "benchmarks" / "results" / "independent_faults_findings.jsonl.gz"
_FAMILIES = ("dlrm", "lecture_dlrm", "stu", "hstu", "streaming")
_OPERATOR = "by hand: "
_LEFT_OUT = (".git", ".venv", "__pycache__", "parity_reports", "shared")
_LONGEST = 900.0
"""Seconds of the longest run."""


def main() -> None:
    """Try the faults, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--faults", type=int, help="number of faults; all by default")
    arguments = parser.parse_args()
    output = arguments.output
    lines = output.read_text().splitlines() if output.exists() else []
    known = {json.loads(line)["fault"] for line in lines}
    with tempfile.TemporaryDirectory(prefix="command-faults-") as name:
        copy = Path(name) / "project"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        for finding, edit in list(_sample())[: arguments.faults]:
            fault = _name(finding)
            if fault not in known:
                line = {"fault": fault, **_outcome(copy, finding, edit)}
                with output.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(line, flush=True)


def _sample() -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """The findings on faults that are not equivalent, with their edits, in random order."""
    edits = {}
    for family in _FAMILIES:
        catalogue = ROOT / "cases" / "faults" / f"independent_{family}.yaml"
        for entry in parse_yaml(catalogue.read_text(encoding="utf-8")):
            edits[f"independent_{family} {entry['name']}"] = entry
    findings = [json.loads(line) for line in gzip.decompress(FINDINGS.read_bytes()).splitlines()]
    findings = [one for one in findings if _name(one) in edits and one["outcome"] != "equivalent"]
    for finding in sorted(findings, key=_place):
        yield finding, edits[_name(finding)]


def _place(finding: dict[str, Any]) -> bytes:
    return hashlib.sha256((finding["operator"] + finding["detail"]).encode()).digest()


def _name(finding: dict[str, Any]) -> str:
    return f"{finding['operator'].removeprefix(_OPERATOR)} {finding['detail']}"


def _replaced(path: Path, old: str, new: str) -> str:
    """Replace a text that a file contains once. Returns the former content."""
    source = path.read_text(encoding="utf-8")
    if source.count(old) != 1:
        raise SystemExit(f"{old!r} is not in {path} once")
    path.write_text(source.replace(old, new), encoding="utf-8")
    return source


def _outcome(copy: Path, finding: dict[str, Any], edit: dict[str, str]) -> dict[str, Any]:
    """The command's answer to one fault in the copy, which is right again behind it."""
    reports = copy / "parity_reports"
    shutil.rmtree(reports, ignore_errors=True)
    path = copy / f"{edit['module'].replace('.', '/')}.py"
    source = _replaced(path, edit["old"], edit["new"])
    chosen = ["--case", finding["case"], "--precision", finding["precision"] or "fp32"]
    try:
        command = [sys.executable, "run_parity.py", *chosen]
        done = subprocess.run(command, cwd=copy, capture_output=True, timeout=_LONGEST, check=False)
    finally:
        path.write_text(source, encoding="utf-8")
    (written,) = reports.glob("*/report.json")
    (case,) = json.loads(written.read_text())["cases"]
    failing = [
        [runner["runner"], (runner["diagnosis"] or {}).get("tap", "")]
        for precision in case["precisions"]
        for runner in precision["runners"]
        if runner["verdict"] == "FAIL"
    ]
    facts = {"case": case["case"]["name"], "precision": chosen[-1], "exit": done.returncode}
    return facts | {"failing": failing}


if __name__ == "__main__":
    main()
