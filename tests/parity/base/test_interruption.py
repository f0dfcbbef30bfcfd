"""Interruptions, locks and temporary files of small programs."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile

import pytest

from parity.base.errors import UserError
from parity.base.interruption import raisable
from parity.base.locks import LOCK, Locked, locked, remove_abandoned
from parity.base.temporaries import _LOCK, _sweep, own_temporaries
from tests.locations import ROOT

PATIENCE = 300


@pytest.fixture
def program():
    """Starts a program of its own and waits until it says that it is ready; none outlives its test."""
    processes = []

    def start(text, environment=None):
        process = subprocess.Popen(
            [sys.executable, "-c", text],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell ignores SIGINT for programs in the background, and so do their children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        processes.append(process)
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


_WAITS = """
import time
from parity.base.interruption import remaining, undoing, watch
watch()
taken = undoing(lambda: print('taken back', flush=True))
undoing(lambda: print('first', flush=True))
undoing(lambda: 1 / 0)
undoing(lambda: print('last', flush=True))
taken()
with remaining('a file'), remaining('nowhere', lambda: False):
    print('ready', flush=True)
    {wait}
"""


@pytest.mark.parametrize("wait", ["time.sleep(600)", "all(x == 0 for x in iter(int, 1))"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_ends_at_once_and_undoes(program, wait, number):
    process = program(_WAITS.format(wait=wait))
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert out == "last\nfirst\n" * 2
    assert err == f"interrupted by {number.name}; a file\n"


def test_a_program_that_has_saved_nothing_says_so(program):
    process = program(_WAITS.format(wait="time.sleep(600)").replace("'a file'", "'a file', lambda: False"))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert err == "interrupted by SIGINT; this call has saved nothing: the same command begins anew\n"


def test_a_library_that_holds_stderr_hides_no_message(program):
    """As nvtripy does it while it compiles."""
    held = "import os; os.dup2(os.open(os.devnull, os.O_RDWR), 2)"
    wait = f"{held}; print('ready', flush=True); time.sleep(600)"
    process = program(_WAITS.replace("print('ready', flush=True)", "pass").format(wait=wait))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert err == "interrupted by SIGTERM; a file\n"


def test_no_other_thread_goes_on_during_the_end(program, tmp_path):
    """It would take the effects of the end, such as processes that are gone, for failures, and save them."""
    folder, noted = tmp_path / "files", tmp_path / "at the end"
    folder.mkdir()
    process = program(
        "import os, time\nfrom pathlib import Path\n"
        "from parity.base.files import replacing\n"
        "from parity.base.interruption import undoing, watch\n"
        f"folder, noted = Path({str(folder)!r}), Path({str(noted)!r})\n"
        "def end():\n"
        "    if not noted.exists(): noted.write_text(str(len(os.listdir(folder))))\n"
        "    time.sleep(0.5)\n"
        "watch(); undoing(end); print('ready', flush=True)\n"
        "for number in range(10**6):\n"
        "    with replacing(folder / str(number)) as temporary: temporary.write_text('')"
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 143
    written = [path for path in folder.iterdir() if not path.name.startswith(".")]
    # The thread may be about to finish one file.
    assert len(written) <= int(noted.read_text()) + 1


def test_an_error_that_follows_from_the_end_is_none(program, tmp_path):
    """The end removes the temporary file just before it would take its place."""
    process = program(
        "import threading, time\nfrom pathlib import Path\n"
        "from parity.base.files import replacing\n"
        "from parity.base.interruption import undoing, watch\n"
        "watch(); removed, goes_on = threading.Event(), threading.Event()\n"
        f"file = Path({str(tmp_path / 'file')!r})\n"
        "undoing(lambda: (removed.set(), goes_on.wait(), time.sleep(0.5)))\n"
        "with replacing(file) as temporary:\n"
        "    temporary.write_text('whole'); print('ready', flush=True); removed.wait()\n"
        "    goes_on.set(); raise FileNotFoundError"
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 143


def test_no_result_is_made_of_an_effect_of_the_end(program, tmp_path):
    """Most errors of a body are caught behind it, and become a row of a report or a note of a record."""
    process = program(
        "import threading, time\nfrom pathlib import Path\n"
        "from parity.base.interruption import undone, undoing, watch\n"
        "watch(); removed, goes_on = threading.Event(), threading.Event()\n"
        "undoing(lambda: (removed.set(), goes_on.wait(), time.sleep(0.5)))\n"
        "try:\n"
        "    with undone(lambda: None):\n"
        "        print('ready', flush=True); removed.wait(); goes_on.set(); raise FileNotFoundError\n"
        f"except OSError: Path({str(tmp_path / 'row')!r}).touch()"
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 143
    assert list(tmp_path.iterdir()) == []


_AFTER_THE_END = """
import sys, threading, time
from parity.base.interruption import undoing, watch
watch()
removed, goes_on = threading.Event(), threading.Event()
# A moment in which a program that does not stay would end by itself.
undoing(lambda: (removed.set(), goes_on.wait(), time.sleep(0.5)))
print('ready', flush=True)
removed.wait()
goes_on.set()
"""
_ENDS = {
    "error": "raise FileNotFoundError",
    "exit": "sys.exit(1)",
    "last line": "",
    "error in a thread": "threading.Thread(target=lambda: 1 / 0).start(); threading.Event().wait()",
    "refusal": (
        "from parity.cli.verb import refusing\n"
        "try:\n"
        "    with refusing(): raise FileNotFoundError\n"
        "except BaseException: print('refused', file=sys.stderr)"
    ),
}


@pytest.mark.parametrize("end", _ENDS.values(), ids=_ENDS)
def test_whatever_follows_from_the_end_gives_no_text_and_no_exit_code(program, end):
    # The refusal's imports come first: they take long.
    imports, _, rest = end.partition("\n") if end.startswith("from") else ("", "", end)
    process = program(f"{imports}\n{_AFTER_THE_END}{rest}")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert (err.count("\n"), err.startswith("interrupted by SIGTERM")) == (1, True), err


@pytest.mark.parametrize(
    "body",
    [
        "with made(root / 'a' / 'b'):",
        "with made(root / 'a' / 'b'), locked(root / 'a' / 'b'):",
        "with making(root / 'a' / 'b') as folder, replacing(folder / 'file') as file, file.open('w'):",
    ],
    ids=["made", "locked", "making"],
)
def test_new_folders_go_at_an_interruption(program, tmp_path, body):
    process = program(
        "import time\nfrom pathlib import Path\n"
        "from parity.base.files import making, replacing\n"
        "from parity.base.interruption import watch\n"
        "from parity.base.locks import locked, made\n"
        f"watch(); root = Path({str(tmp_path)!r})\n"
        f"{body} print('ready', flush=True); time.sleep(600)"
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 143
    assert list(tmp_path.iterdir()) == []


class TestRaisable:
    def test_in_the_program_every_error_is_the_users(self, monkeypatch):
        monkeypatch.setattr("parity.base.interruption._is_ours", True)
        for kind in (KeyError, SystemExit, KeyboardInterrupt, GeneratorExit, BaseException):
            assert issubclass(kind, raisable())

    def test_in_another_process_ctrl_c_is_for_others(self):
        assert issubclass(KeyError, raisable())
        assert issubclass(SystemExit, raisable())
        for kind in (KeyboardInterrupt, GeneratorExit, pytest.skip.Exception):
            assert not issubclass(kind, raisable())

    def test_a_program_that_watches_owns_its_process(self, program):
        process = program(
            "from parity.base.interruption import raisable, watch\n"
            "import sys; before = raisable(); watch(); print('ready', flush=True)\n"
            "print(before, raisable(), file=sys.stderr)"
        )
        _, err = process.communicate(timeout=PATIENCE)
        assert err == "(<class 'Exception'>, <class 'SystemExit'>) (<class 'BaseException'>,)\n"


def test_an_end_without_any_handler_is_an_exit_in_the_program_alone(program):
    """The end by a signal has the exit code of the signal all the same."""
    process = program(
        "import os, sys, time, warnings; from parity.base.interruption import watch; watch()\n"
        # Python 3.12 warns of a fork beside the thread that waits for signals.
        "warnings.simplefilter('ignore')\n"
        "import posix\n"
        "for call in (lambda: os._exit(0), lambda: posix._exit(0), lambda: os.execvp('true', ['true']),\n"
        "             lambda: posix.execve('/bin/true', ['true'], {})):\n"
        "    try: call()\n"
        "    except SystemExit as error: print(error.code, file=sys.stderr)\n"
        "child = os.fork() or os._exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr)\n"
        "child = os.fork() or os.execvp('false', ['false'])\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr)\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    *calls, exited, replaced = err.splitlines()[:6]
    assert calls[:2] == ["_exit(0)", "_exit(0)"]
    assert re.fullmatch(r"execv\(b'.*true', \['true'\]\)", calls[2])
    assert calls[3] == "execve('/bin/true', ['true'], {})"
    assert (exited, replaced) == ("3", "1")
    assert process.returncode == 143


def test_a_file_that_is_begun_during_the_end_goes_with_it(program, tmp_path):
    process = program(
        "import threading, time\nfrom pathlib import Path\n"
        "from parity.base.files import replacing\n"
        "from parity.base.interruption import undoing, watch\n"
        "watch(); begun, ends = threading.Event(), threading.Event()\n"
        "undoing(lambda: (ends.set(), begun.wait()))\n"
        f"with replacing(Path({str(tmp_path / 'file')!r})) as temporary:\n"
        "    print('ready', flush=True); ends.wait(); temporary.write_text('half'); begun.set()"
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 143
    assert list(tmp_path.iterdir()) == []


def test_an_ignored_signal_stays_ignored(program, tmp_path):
    sent = tmp_path / "sent"
    process = program(
        "import os, signal, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from parity.base.interruption import watch\n"
        "watch(); print('ready', flush=True)\n"
        f"while not os.path.exists({str(sent)!r}): time.sleep(0.01)"
    )
    process.send_signal(signal.SIGINT)
    sent.touch()
    assert process.wait(PATIENCE) == 0


def test_processes_of_a_program_with_closed_streams_have_streams():
    child = "import sys; print(None in (sys.stdin, sys.stdout, sys.stderr), file=open(sys.argv[1], 'w'))"
    text = (
        "import subprocess, sys\nfrom parity.base.interruption import watch\n"
        f"watch(); subprocess.run([sys.executable, '-c', {child!r}, sys.argv[1]], close_fds=True)"
    )
    with tempfile.NamedTemporaryFile("r") as told:
        command = shlex.join([sys.executable, "-c", text, told.name])
        subprocess.run(["bash", "-c", f"{command} <&- >&- 2>&-"], cwd=ROOT, check=True)
        assert told.read() == "False\n"


class TestLocks:
    def test_one_user_at_a_time(self, tmp_path):
        with locked(tmp_path), pytest.raises(Locked, match=f"in use by process {os.getpid()}"):
            locked(tmp_path).__enter__()
        assert not (tmp_path / LOCK).exists()

    def test_a_dead_process_holds_nothing(self, program, tmp_path):
        process = program(
            f"import time; from pathlib import Path; from parity.base.locks import locked\n"
            f"with locked(Path({str(tmp_path)!r})): print('ready', flush=True); time.sleep(600)"
        )
        with pytest.raises(Locked, match=f"process {process.pid}"):
            locked(tmp_path).__enter__()
        process.kill()
        process.wait(PATIENCE)
        # As after a restart of a container, where another program has this number.
        (tmp_path / LOCK).write_text(f"{os.getpid()}\n")
        with locked(tmp_path):
            assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
        assert not (tmp_path / LOCK).exists()

    @pytest.mark.parametrize(("is_held", "has_lock"), [(True, True), (False, True), (False, False)])
    def test_a_folder_with_a_free_lock_is_abandoned(self, tmp_path, is_held, has_lock):
        folder = tmp_path / "folder"
        folder.mkdir()
        with locked(folder) if is_held else contextlib.nullcontext():
            if has_lock and not is_held:
                (folder / LOCK).touch()
            remove_abandoned(folder, LOCK)
            assert folder.exists() == (is_held or not has_lock)


class TestTemporaries:
    def test_they_end_with_the_program(self, program, short_folder):
        text = (
            "import multiprocessing.util, sys, tempfile\n"
            "from parity.base.temporaries import own_temporaries\n"
            "own_temporaries(); tempfile.mkdtemp(); multiprocessing.util.get_temp_dir()\n"
            "print('ready', flush=True); print(tempfile.gettempdir(), file=sys.stderr)"
        )
        process = program(text, {"TMPDIR": str(short_folder)})
        out, err = process.communicate(timeout=PATIENCE)
        assert err.startswith(f"{short_folder}/parity-")
        assert (process.returncode, out, err.count("\n")) == (0, "", 1)
        assert list(short_folder.iterdir()) == []

    def test_those_of_killed_programs_are_swept(self, program, short_folder):
        text = (
            "import time; from parity.base.temporaries import own_temporaries\n"
            "own_temporaries(); print('ready', flush=True); time.sleep(600)"
        )
        alive, killed = (program(text, {"TMPDIR": str(short_folder)}) for _ in range(2))
        killed.kill()
        killed.wait(PATIENCE)
        folders = {int((path / _LOCK).read_text()): path for path in short_folder.iterdir()}
        # Results of a run that was killed.
        saved = short_folder / "parity-mine"
        saved.mkdir()
        (saved / LOCK).touch()
        _sweep(short_folder)
        assert set(short_folder.iterdir()) == {folders[alive.pid], saved}
        alive.terminate()
        alive.wait(PATIENCE)

    @pytest.mark.parametrize("kind", ["long", "file"])
    def test_a_bad_place_is_refused(self, tmp_path, monkeypatch, kind):
        place = tmp_path / ("x" * 100 if kind == "long" else "file")
        if kind == "long":
            place.mkdir()
        else:
            place.write_text("")
        monkeypatch.setattr("tempfile.tempdir", str(place))
        with pytest.raises(UserError, match="TMPDIR: .* (is too long for sockets|cannot be written)"):
            own_temporaries()
        assert kind == "file" or list(place.iterdir()) == []
