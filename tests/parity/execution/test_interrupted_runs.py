"""Runs that are interrupted or killed: nothing of them stays but finished work."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.kills import own_group
from parity.base.locks import LOCK, locked
from tests.locations import ROOT
from tests.selection import first_in_test

ARGUMENTS = ("--case", "dlrm_tiny", "--precision", "fp32,fp16", "--runners", "tripy")
PATIENCE = 300

pytestmark = pytest.mark.xdist_group("interrupted_runs")


@pytest.fixture
def started(short_folder):
    """Starts a run in a process group of its own, and waits for its first captures."""
    temporary = short_folder
    processes = []

    def start(*arguments):
        words = [sys.executable, "run_parity.py", *ARGUMENTS, *map(str, arguments)]
        process = own_group.start(words, ROOT, {**os.environ, "TMPDIR": str(temporary)})
        processes.append(process)
        # A line without a step says that it works.
        assert any("dlrm_tiny" in line for line in process.stderr)
        return process, temporary

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def _below(temporary):
    """Processes whose temporary files are in a folder. A process that has ended has no environment."""
    marked = f"TMPDIR={temporary}/".encode()
    running = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marked in path.read_bytes():
                running.append(int(path.parent.name))
        except OSError:
            continue
    return running


def _until_none(temporary):
    began = time.monotonic()
    while _below(temporary):
        assert time.monotonic() - began < PATIENCE, _below(temporary)
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_an_interrupted_run_says_how_to_go_on(started, tmp_path, number):
    folder = tmp_path / "run"
    process, temporary = started("--save", folder)
    assert _below(temporary)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert err.splitlines()[-1] == (
        f"interrupted by {number.name}; {folder} holds the batches that are done: `resume {folder}` goes on"
    )
    assert "Traceback" not in err
    _until_none(temporary)
    assert list(temporary.iterdir()) == []
    assert not (folder / LOCK).exists()
    assert (folder / "started.json").exists()


@pytest.mark.full
def test_processes_of_a_killed_run_end_and_the_next_run_sweeps(started):
    process, temporary = started()
    assert len(_below(temporary)) > 2
    process.kill()
    process.wait(PATIENCE)
    _until_none(temporary)
    (left,) = temporary.iterdir()
    assert re.match("parity-", left.name)
    os.utime(left, (0, 0))
    ended = subprocess.run(
        [sys.executable, "run_parity.py", "list"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        check=True,
    )
    assert ended.stderr == b""
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("verb", ["--save", "resume"])
def test_a_folder_in_use_is_refused(refused, tmp_path, verb):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "started.json").write_text("{}")
    arguments = ("--case", "hstu_tiny", "--save") if verb == "--save" else ("resume",)
    with locked(folder):
        message = refused(*arguments, folder)
    assert message == (
        f"{verb}: {folder} is in use by process {os.getpid()}; wait for its end, or choose another"
    )


def test_a_closed_pipe_loses_neither_report_nor_exit_code(saved_run, tmp_path):
    process = subprocess.Popen(
        [sys.executable, ROOT / "run_parity.py", "replay", saved_run.folder, "-v"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    process.stderr.close()
    assert process.wait(PATIENCE) == 0
    assert len(list(tmp_path.glob("parity_reports/*/report.json"))) == 1


@pytest.mark.parametrize("closed", first_in_test(["<&- >&- 2>&-", ">&-", "2>&-", ">&- 2>&-"]))
def test_closed_streams_lose_neither_files_nor_the_exit_code(tmp_path, closed):
    words = [sys.executable, str(ROOT / "run_parity.py"), "new"]
    for name, code in (("my_model", 0), ("my_model", 2), ("class", 2)):
        ended = subprocess.run(
            ["bash", "-c", f"{shlex.join([*words, name])} {closed}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ended.returncode, "Traceback" in ended.stderr) == (code, False)
    (path,) = tmp_path.iterdir()
    compile(path.read_text(), path.name, "exec")


@pytest.mark.full
def test_a_replay_with_closed_streams_writes_its_report(saved_run, tmp_path):
    words = shlex.join([sys.executable, str(ROOT / "run_parity.py"), "replay", str(saved_run.folder), "-v"])
    ended = subprocess.run(["bash", "-c", f"{words} <&- >&- 2>&-"], cwd=tmp_path, check=False)
    assert ended.returncode == 0
    assert len(list(tmp_path.glob("parity_reports/*/report.json"))) == 1


@pytest.mark.full
def test_of_two_resumes_one_goes_on_and_a_replay_meanwhile_is_refused(started, tmp_path):
    folder = tmp_path / "run"
    process, temporary = started("--save", folder)
    began = time.monotonic()
    while not list(folder.glob("*/batch_*/*/files.json")):
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.01)
    killed = (folder / LOCK).read_text().strip()
    process.kill()
    process.wait(PATIENCE)
    _until_none(temporary)
    words = [sys.executable, str(ROOT / "run_parity.py")]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    first = subprocess.Popen([*words, "resume", str(folder)], cwd=tmp_path, env=environment)
    began = time.monotonic()
    # The killed run's lock has its own number.
    while (holder := (folder / LOCK).read_text().strip()) in (killed, ""):
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.01)
    # It stands still until the others have ended, however long these take.
    os.kill(int(holder), signal.SIGSTOP)
    try:
        assert first.poll() is None
        refusals = {"resume": f"is in use by process {holder}", "replay": "holds no complete saved run"}
        for verb, refusal in refusals.items():
            ended = subprocess.run(
                [*words, verb, str(folder)], cwd=tmp_path, env=environment, capture_output=True, text=True
            )
            assert ended.returncode == 2
            assert refusal in ended.stderr
            assert "Traceback" not in ended.stderr
    finally:
        os.kill(int(holder), signal.SIGCONT)
    assert first.wait(PATIENCE) == 0
    ended = subprocess.run([*words, "replay", str(folder)], cwd=tmp_path, check=False)
    assert ended.returncode == 0
