"""The peak of a process tree: what grandchildren hold at one time, and how the command ended."""

import json
import os
import subprocess
import sys

import pytest

from tests.locations import ROOT

TOOL = ROOT / "tools" / "peak_memory.py"
HOLD = "import time; held = bytearray(b'x') * {size}; time.sleep({seconds})"
TOGETHER = """
import os, sys, time
held = bytearray(b'x') * {size}
open('{folder}/' + str(os.getpid()), 'w').close()
while len(os.listdir('{folder}')) < {number}: time.sleep(0.01)
time.sleep(3)
"""
"""Memory of processes that wait for one another, and then hold it for a while."""

pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/smaps_rollup", os.R_OK), reason="the system has no /proc/PID/smaps_rollup"
)


def _peak(code):
    done = subprocess.run(
        [sys.executable, str(TOOL), sys.executable, "-c", code], capture_output=True, text=True
    )
    actual = json.loads(done.stderr.splitlines()[-1])
    assert actual["exit_code"] == done.returncode
    return actual


def _starting(*codes):
    started = ", ".join(f"subprocess.Popen([sys.executable, '-c', {code!r}])" for code in codes)
    return f"import subprocess, sys; [each.wait() for each in ({started},)]"


def test_what_descendants_hold_together_is_counted(tmp_path):
    hold = TOGETHER.format(size=100_000_000, folder=tmp_path, number=2)
    actual = _peak(_starting(hold, _starting(hold)))
    assert 200e6 < actual["peak_pss"] <= actual["peak_rss"] < 400e6


@pytest.mark.full
def test_what_is_held_at_different_times_is_not_added_up():
    hold = HOLD.format(size=100_000_000, seconds=2)
    code = f"import subprocess, sys\nfor _ in range(2): subprocess.run([sys.executable, '-c', {hold!r}])"
    assert 100e6 < _peak(code)["peak_pss"] < 180e6


def test_it_ends_as_the_command_did():
    assert _peak("import sys; sys.exit(3)")["exit_code"] == 3


@pytest.mark.full
def test_temporary_files_are_the_disk():
    write = "import os, tempfile, time; from pathlib import Path; folder = Path(tempfile.mkdtemp())"
    write += (
        "; (folder / 'a').write_bytes(bytes(3_000_000)); os.link(folder / 'a', folder / 'b'); time.sleep(3)"
    )
    assert _peak(write)["peak_disk"] == 3_000_000


@pytest.mark.full
def test_cpu_seconds_are_those_of_all_processes():
    burn = "import time; end = time.process_time() + 1\nwhile time.process_time() < end: pass\ntime.sleep(3)"
    assert _peak(_starting(burn, burn))["cpu_seconds"] > 1.9
