"""Processes of a campaign."""

import os
import subprocess
import sys

from threadpoolctl import threadpool_info

from tests.locations import ROOT

_PROGRAM = f"""
from {__name__} import numpy_threads
from parity.studies.fault_injection.workers import reports

print(*reports([(numpy_threads, ())]))
"""


def numpy_threads():
    """A task: the threads of NumPy's library."""
    libraries = [library for library in threadpool_info() if library["internal_api"] == "openblas"]
    yield max(library["num_threads"] for library in libraries)


def test_numpy_has_one_thread_in_each_process_of_a_campaign():
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", _PROGRAM]
    output = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert output.stdout.split() == ["1"]
