"""Processes of a campaign."""

import os
import subprocess
import sys

import pytest
from threadpoolctl import threadpool_info

from tests.locations import ROOT

_PROGRAM = f"""
import sys
from {__name__} import leaves, numpy_threads
from parity.base.errors import UserError
from parity.studies.fault_injection.workers import reports

try:
    print(*reports([(globals()[sys.argv[1]], ())]))
except UserError as error:
    print(error)
"""


def numpy_threads():
    """A task: the threads of NumPy's library."""
    libraries = [library for library in threadpool_info() if library["internal_api"] == "openblas"]
    yield max(library["num_threads"] for library in libraries)


def leaves():
    """A task that ends its process as if all were well."""
    os._exit(0)
    yield


def _printed(task):
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", _PROGRAM, task]
    ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return ended.stdout


@pytest.mark.full
def test_numpy_has_one_thread_in_each_process_of_a_campaign():
    assert _printed("numpy_threads").split() == ["1"]


def test_a_process_that_ends_before_its_task_is_told():
    assert _printed("leaves").startswith("self-test: a process ended without a result: killed, or ")
