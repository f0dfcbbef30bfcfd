"""Mutation tests of the code that decides: mutmut's changes against the project's tests.

    pip install --target /tmp/mutmut mutmut==3.8.1
    python -m benchmarks.mutation OUTPUT --mutmut /tmp/mutmut [--files PATTERN] [--tests PATH,PATH]

mutmut makes the mutants. Functions of the imported modules get the mutants' code, so that no file is copied
or changed. The body of a decorated function, such as a property, has mutants too.

Each test runs once without a mutant, in a fork, and records the functions that it enters. A test that fails
or does not end there is left out. A mutant then meets the tests that enter its function, the fastest first,
until one fails. A test that takes ten times as long as without a mutant counts as failed: "timeout".

OUTPUT gets a line of JSON for each mutant: its name, a digest of its function's text and of its change, and
the outcome. An outcome is "killed" or "timeout" with the test, "survived", or "not entered". A mutant that
OUTPUT has as killed, with the same digest, is not run again. OUTPUT.tests has the functions that each test
enters. A change of the test's file makes them void.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
from pathlib import Path

import pytest

from benchmarks.mutation.driver import Driver
from benchmarks.mutation.mutants import ROOT

FILES = (
    "parity/capture/arguments.py",
    "parity/capture/slices.py",
    "parity/inputs/masks.py",
    "parity/report/assemble.py",
    "parity/report/outcome.py",
    "parity/report/streams.py",
    "parity/verdict/**/*.py",
    "parity/cli/[abrsv]*.py",
    "parity/cli/new.py",
    "parity/cli/program.py",
)
"""Patterns of the files with mutants: their functions decide a verdict, a status, a request or an exit code.

Of the verbs' files, three only write: `options.py` what help and completion say, `output.py` and
`progress.py` lines on the screen. `new_case.py` is the example that `new` copies. Their mutants change no
decision, and most of their code runs at import, before a mutant is there.
"""
TESTS = (
    "tests/parity/verdict",
    "tests/parity/capture/test_arguments.py",
    "tests/parity/capture/test_slices.py",
    "tests/parity/inputs/test_masks.py",
    "tests/parity/report",
    "tests/parity/cli",
    "tests/parity/studies/serving/test_command.py",
    "tests/parity/test_api_call_order.py",
    "tests/parity/test_api_calls.py",
    "tests/parity/test_api_causes.py",
    "tests/parity/test_api_results.py",
    "tests/parity/test_api_tolerance.py",
)
"""Tests that a mutant may meet."""
LEFT_OUT = (
    "not right_programs and not as_often_as_stated and not wrong_program_fails and not in_a_run "
    "and not never_flagged and not covers_a_known and not import_no_engine"
)
"""Simulations, and runs in processes of their own, take longer than a mutant may."""


def main() -> int:
    """Run the mutants of the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--mutmut", required=True, help="folder with mutmut")
    parser.add_argument("--files", default="*", help="pattern of the files; all of them by default")
    parser.add_argument("--tests", default="", help="tests in place of all")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds of tests that a mutant meets")
    arguments = parser.parse_args()
    sys.path.append(arguments.mutmut)
    paths = sorted({path for pattern in FILES for path in ROOT.glob(pattern)})
    files = [path for path in paths if fnmatch.fnmatch(str(path.relative_to(ROOT)), arguments.files)]
    tests = arguments.tests.split(",") if arguments.tests else TESTS
    folder = arguments.output.resolve().with_suffix(".folders")
    quiet = ["--basetemp", str(folder), "-n", "0", "-q", "-s"]
    options = [*quiet, "-m", "not full", "-k", LEFT_OUT, *tests]
    os.chdir(ROOT)
    driver = Driver(arguments.output.resolve(), files, paths, arguments.budget)
    return int(pytest.main(options, plugins=[driver]))


if __name__ == "__main__":
    sys.exit(main())
