"""Programs that work under the process that waits for them: exit codes, signals, ends without a word."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.kills import own_group
from tests.locations import ROOT

PATIENCE = 300
START = (
    "import atexit, ctypes, os, signal, sys, time\n"
    "from parity.base.interruption import watch\n"
    "from parity.base.supervision import supervised\n"
    "C = ctypes.CDLL(None)\n"
)
BODY = f"{START}with supervised():\n    watch(); "


@pytest.fixture
def program():
    """Starts a program in a group of its own, and waits for its first line, the child's process id."""
    processes = []

    def start(text):
        process = own_group.start([sys.executable, "-c", text], ROOT)
        processes.append(process)
        return process, int(process.stdout.readline())

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def ended(text):
    # Neither a warning of Python 3.12 about forks beside threads nor a dump that the environment asks for.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONFAULTHANDLER"}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


IN_ORDER = {
    "pass": 0,
    "sys.exit()": 0,
    "sys.exit(0)": 0,
    "sys.exit(1)": 1,
    "sys.exit(2)": 2,
    "sys.exit('text')": 1,
    "raise ValueError": 1,
    # The exit code is known before code of the user ends the process once more.
    "atexit.register(C._exit, 0); sys.exit(1)": 1,
    "atexit.register(C._exit, 1); sys.exit(0)": 0,
}


@pytest.mark.parametrize(("body", "code"), IN_ORDER.items(), ids=IN_ORDER)
def test_an_end_in_order_keeps_its_exit_code(body, code):
    assert ended(BODY + body).returncode == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_behind_the_last_line_is_no_failure_of_a_library(number):
    # The last one that is registered runs first.
    last = f"atexit.register(signal.raise_signal, {number:d}); atexit.register(signal.signal, {number:d}, 0)"
    process = ended(f"{BODY}{last}; sys.exit(0)")
    assert (process.returncode, process.stderr) == (128 + number, "")


SILENT = {
    "C._exit(0)": (2, "case: its code ends the program with exit code 0 and without a verdict; let neither"),
    "C._exit(3)": (2, "case: its code ends the program with exit code 3 and without a verdict; let neither"),
    "C.exit(0)": (2, "case: its code ends the program with exit code 0 and without a verdict; let neither"),
    "C.raise_(signal.SIGSEGV)": (139, "machine: the program is ended by SIGSEGV; correct the library"),
    "C.raise_(signal.SIGKILL)": (137, "machine: the program is ended by SIGKILL; free memory, set"),
    "C.raise_(signal.SIGABRT)": (134, "machine: the program is ended by SIGABRT; correct the library"),
    "C.raise_(signal.SIGXCPU)": (152, "machine: the program is ended by SIGXCPU; raise the limit"),
    "C.raise_(signal.SIGHUP)": (129, "machine: the program is ended by SIGHUP; call again; a --save folder"),
    # Neither does a process that the child has left behind.
    "os.fork() or sys.exit(0); time.sleep(1); C._exit(0)": (2, "case: its code ends the program with exit"),
    "child = os.fork() or time.sleep(2); C._exit(0)": (2, "case: its code ends the program with exit code 0"),
}


@pytest.mark.parametrize(("body", "code", "message"), [(b, *end) for b, end in SILENT.items()], ids=SILENT)
def test_an_end_without_a_word_is_told_and_is_no_success(body, code, message):
    # The tests' own process may ignore it, as one does that nohup starts.
    heard = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    process = ended(heard + BODY + body.replace("raise_", "__getattr__('raise')"))
    assert (process.returncode, process.stdout) == (code, "")
    assert process.stderr.startswith(f"error: {message}")
    assert process.stderr.count("\n") == 1


WAITS = f"{BODY}print(os.getpid(), flush=True); time.sleep(600)"
NOT_YET = WAITS.replace("watch(); ", "", 1).replace("time.sleep", "time.sleep(0.5); watch(); time.sleep")


@pytest.mark.parametrize("text", [WAITS, NOT_YET], ids=["at work", "before it listens"])
@pytest.mark.parametrize("receiver", ["parent", "child", "group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_once(program, text, receiver, number):
    process, child = program(text)
    if receiver == "group":
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid if receiver == "parent" else child, number)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert err == (
        f"interrupted by {number.name}; this call has saved nothing: the same command begins anew\n"
    )


@pytest.mark.parametrize("milliseconds", [*range(0, 40, 4)])
def test_at_any_moment_behind_the_fork_a_signal_is_heard(program, milliseconds):
    process, _ = program(f"{START}with supervised():\n    print(1, flush=True); watch(); time.sleep(600)")
    time.sleep(milliseconds / 1000)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 143


def test_a_program_that_is_interrupted_at_its_end_says_so(program):
    text = "print(os.getpid(), flush=True); atexit.register(time.sleep, 600); sys.exit(0)"
    process, _ = program(BODY + text)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 143


def test_an_ignored_signal_stays_ignored(program):
    ignores = BODY.replace("with sup", "signal.signal(signal.SIGINT, signal.SIG_IGN)\nwith sup")
    process, child = program(f"{ignores}print(os.getpid(), flush=True); time.sleep(1)")
    process.send_signal(signal.SIGINT)
    os.kill(child, signal.SIGINT)
    assert process.wait(PATIENCE) == 0


def test_a_program_whose_parent_ignores_the_ends_of_children_has_its_exit_code():
    ignores = BODY.replace("with sup", "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nwith sup")
    assert ended(f"{ignores}sys.exit(1)").returncode == 1


def test_the_child_dies_with_its_parent(program):
    process, child = program(WAITS)
    process.kill()
    process.wait(PATIENCE)
    began = time.monotonic()
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() - began < PATIENCE and "Z" not in _state(child):
            os.kill(child, 0)
            time.sleep(0.01)
    assert time.monotonic() - began < PATIENCE


def _state(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_a_stop_at_the_terminal_stops_all_and_they_go_on(program):
    """Ctrl-Z goes to the group."""
    process, child = program(f"{BODY}print(os.getpid(), flush=True); time.sleep(0.5)")
    os.killpg(process.pid, signal.SIGSTOP)
    began = time.monotonic()
    while (_state(process.pid), _state(child)) != ("T", "T"):
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGCONT)
    assert process.wait(PATIENCE) == 0


def test_the_child_reads_stdin():
    words = [sys.executable, "-c", f"{BODY}print(sys.stdin.read())"]
    told = subprocess.run(words, cwd=ROOT, input="a text", capture_output=True, text=True, check=True)
    assert told.stdout == "a text\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_program_with_closed_streams_keeps_its_exit_code(closed):
    words = shlex.join(
        [sys.executable, "-c", f"{BODY}print('text'); print('text', file=sys.stderr); sys.exit(1)"]
    )
    assert subprocess.run(["bash", "-c", f"{words} {closed}"], cwd=ROOT, check=False).returncode == 1


@pytest.mark.parametrize("limit", ["-n 4", "-n 3"])
def test_a_program_that_cannot_have_a_pipe_is_refused(limit):
    words = shlex.join(
        [sys.executable, "-c", f"{START}import resource; resource.setrlimit(7, (4, 4))\n{BODY}pass"]
    )
    told = subprocess.run(["bash", "-c", words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert told.stderr.startswith("error: machine: the program cannot start (Too many open files); raise")


@pytest.mark.parametrize("entry", ["parity.__main__", "parity.base.supervision"])
def test_the_fork_comes_before_any_thread_and_any_large_import(entry):
    """A fork copies one thread; Python 3.12 warns of others."""
    text = f"import os, sys, {entry}, parity.base.interruption, parity.base.memory\n"
    text += "print(len(os.listdir('/proc/self/task')), 'numpy' in sys.modules, 'click' in sys.modules)"
    assert ended(text).stdout == "1 False False\n"
