"""Faults by hand in the suite itself, each against the tests of the folder that mirrors its module's.

    python benchmarks/suite_faults.py OUTPUT [--faults NAME,NAME] [--tests FOLDER,FOLDER]

Copies the project into a temporary folder, puts one fault after the other into the copy, and runs the tests
of `make test` until the first fails. Appends a line of JSON for each fault to the file OUTPUT: its name, the
outcome, and the first test that fails. A fault that ends the collection of tests is detected too.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from parity.base.strict_yaml import parse_yaml  # noqa: E402, the path comes first

CATALOGUE = ROOT / "cases" / "faults" / "independent_harness.yaml"
_LEFT_OUT = (".git", ".venv", "__pycache__", "parity_reports", "shared")
_TIMEOUT = 600.0
_FIRST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main() -> None:
    """Try the faults, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--faults", default="", help="names; all by default")
    parser.add_argument("--tests", default="", help="folders or files; those beside the module's by default")
    arguments = parser.parse_args()
    named = set(filter(None, arguments.faults.split(",")))
    tests = list(filter(None, arguments.tests.split(",")))
    entries = parse_yaml(CATALOGUE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="suite-faults-") as name, arguments.output.open("a") as output:
        root = Path(name) / "project"
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        for entry in entries:
            if not named or entry["name"] in named:
                finding = _try(root, entry, tests)
                output.write(json.dumps(finding) + "\n")
                output.flush()
                print(finding["outcome"], finding["fault"], finding["proof"])


def _try(root: Path, entry: dict[str, str], tests: list[str]) -> dict[str, str]:
    """The outcome of one fault in the copy, which is right again afterwards."""
    path = root / f"{entry['module'].replace('.', '/')}.py"
    source = path.read_text(encoding="utf-8")
    if source.count(entry["old"]) != 1:
        return {"fault": entry["name"], "outcome": "broken", "proof": "its text is not in the module once"}
    path.write_text(source.replace(entry["old"], entry["new"]), encoding="utf-8")
    try:
        proof = _first_failure(root, tests or list(_mirrors(root, entry["module"])))
    finally:
        path.write_text(source, encoding="utf-8")
    return {"fault": entry["name"], "outcome": "detected" if proof else "undetected", "proof": proof}


def _mirrors(root: Path, module: str) -> Iterator[str]:
    """The folder of tests that mirrors a module's."""
    folder = root.joinpath("tests", *module.split(".")[:-1])
    while not folder.exists():
        folder = folder.parent
    yield str(folder.relative_to(root))


def _first_failure(root: Path, tests: list[str]) -> str:
    """The first test that fails; empty if none does."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not full", "-p", "no:cacheprovider", *tests]
    try:
        ended = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return "the tests do not end"
    first = _FIRST.search(ended.stdout)
    return (first[1] if first else f"exit code {ended.returncode}") if ended.returncode else ""


if __name__ == "__main__":
    main()
