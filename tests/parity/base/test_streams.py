"""Standard streams that take no more: the work goes on, and a loss of stdout is told."""

import os
import subprocess
import sys
import time

import pytest

from tests.locations import ROOT

FULL = "/dev/full"
LOST = f"error: stdout: {FULL} cannot be written (No space left on device); lead it elsewhere"
PROGRAM = """
import sys
from pathlib import Path
from parity.base.interruption import remaining, watch
from parity.base.streams import require_output
watch()
print('begun')
print('begun', file=sys.stderr)
with remaining('a file'):
    for _ in range(3):
        print('x' * 100000, flush=True)
        print('y' * 100000, file=sys.stderr)
print('ended')
Path(sys.argv[1]).touch()
require_output()
sys.exit(7)
"""


@pytest.fixture(autouse=True)
def _buffers(monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


pytestmark = pytest.mark.skipif(not os.path.exists(FULL), reason="this system has no full device")


def ended(tmp_path, stdout, stderr, text=PROGRAM):
    """The end of a small program; it has to reach its last line."""
    done = tmp_path / "done"
    streams = [open(name, "w") if isinstance(name, str) else name for name in (stdout, stderr)]
    try:
        end = subprocess.run(
            [sys.executable, "-c", text, str(done)], cwd=ROOT, text=True, stdout=streams[0], stderr=streams[1]
        )
    finally:
        for stream in streams:
            if not isinstance(stream, int):
                stream.close()
    assert done.exists()
    return end


def test_streams_that_take_all_are_as_before(tmp_path):
    end = ended(tmp_path, subprocess.PIPE, subprocess.PIPE)
    assert end.returncode == 7
    assert end.stdout == "begun\n" + f"{'x' * 100000}\n" * 3 + "ended\n"
    assert end.stderr == "begun\n" + f"{'y' * 100000}\n" * 3


def test_a_full_stdout_is_told_at_the_end_with_what_remains(tmp_path):
    end = ended(tmp_path, FULL, subprocess.PIPE)
    assert end.returncode == 2
    assert end.stderr.splitlines()[-1] == f"{LOST}; a file"
    assert end.stderr.count("error: ") == 1


def test_a_short_text_that_waits_for_the_end_is_told_too(tmp_path):
    text = PROGRAM.replace("print('x' * 100000, flush=True)", "pass")
    end = ended(tmp_path, FULL, subprocess.PIPE, text)
    assert end.returncode == 2
    assert end.stderr.splitlines()[-1] == LOST


def test_a_full_stderr_changes_no_exit_code(tmp_path):
    end = ended(tmp_path, subprocess.PIPE, FULL)
    assert end.returncode == 7
    assert end.stdout.endswith("ended\n")


def test_of_two_full_streams_stdout_gives_the_exit_code(tmp_path):
    assert ended(tmp_path, FULL, FULL).returncode == 2


@pytest.mark.parametrize("number", [1, 2])
def test_a_reader_that_leaves_changes_no_exit_code(tmp_path, number):
    reading, writing = os.pipe()
    os.close(reading)
    streams = [subprocess.PIPE, subprocess.PIPE]
    streams[number - 1] = writing
    end = ended(tmp_path, *streams)
    os.close(writing)
    assert end.returncode == 7
    assert (end.stderr if number == 1 else end.stdout).count("begun") == 1


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("options", [("-u",), ()], ids=["unbuffered", "buffered"])
def test_text_without_buffers_comes_at_once(number, options):
    """In Python's own way: an end of the process by a signal would lose the text."""
    text = (
        "import os, sys\nfrom parity.base.interruption import watch\nwatch()\n"
        f"sys.{('stdout', 'stderr')[number - 1]}.write('x'); os.kill(os.getpid(), 9)"
    )
    end = subprocess.run([sys.executable, *options, "-c", text], cwd=ROOT, capture_output=True, text=True)
    assert (end.stdout, end.stderr)[number - 1] == ("x" if options else "")


@pytest.mark.parametrize("options", [("-u",), ()], ids=["unbuffered", "buffered"])
def test_a_pipe_that_does_not_block_gets_all(options):
    text = "from parity.base.interruption import watch; watch(); print('x' * 10**6, 'y' * 10**6)"
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with subprocess.Popen(
        [sys.executable, *options, "-c", text], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE
    ) as process:
        os.close(writing)
        with open(reading) as reader:
            # Let the pipe fill up first.
            time.sleep(0.5)
            assert reader.read() == f"{'x' * 10**6} {'y' * 10**6}\n"
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize(
    "arguments", [("list",), ("--help",), ("list", "--help"), ("new", "mine"), ("new", "class")], ids=" ".join
)
def test_the_program_ends_by_one_message(tmp_path, arguments):
    with open(FULL, "w") as full:
        end = subprocess.run(
            [sys.executable, str(ROOT / "run_parity.py"), *arguments],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert end.returncode == 2
    assert end.stderr.startswith("error: new: class is" if "class" in arguments else LOST)
    assert end.stderr.count("\n") == 1
    # What the verb writes is whole.
    assert [path.name for path in tmp_path.iterdir()] == (["mine.py"] if "mine" in arguments else [])


def test_help_to_a_reader_that_leaves_ends_well(tmp_path):
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "run_parity.py"), "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == (b"", 0)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_character_that_a_stream_does_not_have_is_escaped(encoding):
    program = (
        "import sys; from parity.base.interruption import watch; watch()\n"
        "print('a\\u2026b\\udcff'); print('c\\u2026', file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
    )
    shown = "\\u2026" if encoding == "ascii" else "\u2026"
    assert ended.returncode == 0, ended
    assert ended.stdout.decode(encoding) == f"a{shown}b\\udcff\n"
    assert ended.stderr.decode(encoding) == f"c{shown}\n"
