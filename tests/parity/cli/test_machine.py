"""Commands on a machine that lacks memory, disk space or permission, and inputs that never end."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys

import pytest

from parity.base import threads
from tests.fuzz import saved_folders
from tests.locations import ROOT
from tests.parity.conftest import PROGRESS
from tests.selection import first_in_test

CASE = ("--model", saved_folders.CASE)
RUN = ("run", *CASE, "--precision", "fp32", "--runners", "tripy")
VERBS = {
    "new": ("new", "mine"),
    "run": (*RUN, "--save", "out"),
    "report": RUN,
    "replay": ("replay", saved_folders.COMPLETE),
    "resume": ("resume", saved_folders.BEGUN),
    "precision": ("precision", *CASE, "--save", "out"),
    "self-test": ("self-test", *CASE, "--precision", "fp32", "--clean-runs", "1", "--save", "out"),
    "train": ("train", "--case", "hstu_tiny", "--data", "ratings", "--out", "out", "--epochs", "1"),
}
"""Calls that write, by verb; `report` writes into the default folder."""
RATINGS = "".join(f"{user}\t{item}\t3\t{item}\n" for user in range(1, 9) for item in range(1, 9))

of_verbs = pytest.mark.parametrize(
    "verb", [verb if verb == "new" else pytest.param(verb, marks=pytest.mark.full) for verb in VERBS]
)
pytestmark = pytest.mark.xdist_group("machine")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A complete run, and one that has begun; they are made where a test asks first."""
    folder = tmp_path_factory.mktemp("runs")
    return lambda: saved_folders.make(folder)


@pytest.fixture
def folder(tmp_path, runs):
    """Makes a working folder with the files that a verb reads."""

    def laid_out(verb):
        inputs = tmp_path / "inputs"
        inputs.mkdir()
        if verb in ("replay", "resume"):
            name = VERBS[verb][1]
            shutil.copytree(runs()[name], inputs / name)
        (inputs / "ratings").write_text(RATINGS)
        return inputs

    return laid_out


def ended(inputs, before, verb, prefix=()):
    """The end of a verb's call, and the files below its folder behind it.

    Args:
        inputs: The folder.
        before: Lines of a shell that come first.
        verb: A name in `VERBS`.
        prefix: A program that begins the call, with its arguments.
    """
    name, *arguments = VERBS[verb]
    program = ["-m", "reference.train"] if name == "train" else [str(ROOT / "run_parity.py"), name]
    after = inputs.parent / "after"
    script = f'{before}\n"$@"; code=$?; find . -mindepth 1 >{after}; exit $code'
    paths = str(ROOT), os.environ.get("PYTHONPATH", "")
    end = subprocess.run(
        [*prefix, "bash", "-c", script, "bash", sys.executable, *program, *arguments],
        cwd=inputs,
        # An empty path would be the present folder.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
    )
    return end, set(after.read_text().splitlines())


def message(end):
    """The text of a refusal."""
    text = PROGRESS.sub("", end.stderr).strip()
    assert end.returncode == 2, end
    assert text.startswith("error: "), end
    assert text.count("\n") < 6, text
    assert len(text) <= 1000, text
    return text


def assert_nothing_is_unfinished(files):
    assert not [name for name in files if re.search(r"/\.[^/]+\.\d+\.\d+$|\.unfinished", name)]
    assert not [name for name in files if re.search(r"^./(out|parity_reports/[^/]+)/report\.", name)]


def _forbidden():
    """A program that takes from its child the right of root to write everywhere."""
    if os.geteuid() != 0:
        return ()
    rights = "-dac_override,-dac_read_search"
    prefix = ("setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}")
    if shutil.which(prefix[0]) is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("root writes into every folder, and this process cannot take its right away")
    return prefix


@of_verbs
def test_a_folder_that_cannot_be_written_is_refused(verb, folder):
    inputs = folder(verb)
    (inputs.parent / "after").touch()
    before = {f"./{path.relative_to(inputs)}" for path in inputs.rglob("*")}
    end, files = ended(inputs, "chmod -R a-w .", verb, _forbidden())
    subprocess.run(["chmod", "-R", "u+w", inputs], check=True)
    assert "Permission denied" in message(end)
    assert files == before


def _small_disk():
    """A program whose child can mount file systems that nobody else sees."""
    prefix = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
    mounted = [*prefix, "sh", "-c", "mount -t tmpfs none /tmp"]
    if shutil.which("unshare") is None or subprocess.run(mounted, capture_output=True).returncode:
        pytest.skip("this process cannot mount a file system")
    return prefix


FULL_DISK = """
mkdir ../disk && mount -t tmpfs -o size=64m none ../disk && cp -r . ../disk && cd ../disk || exit 77
cat /dev/zero >filler 2>/dev/null; truncate -s -{free}K filler
"""
"""A disk of its own with the files of the folder, and some kB that are free."""


@of_verbs
def test_a_full_disk_is_refused(verb, folder):
    # These two write one small file.
    full = FULL_DISK.format(free=0 if verb in ("new", "precision") else 16)
    end, files = ended(folder(verb), full, verb, _small_disk())
    assert re.search("No space left on device", message(end))
    assert_nothing_is_unfinished(files)


@of_verbs
def test_files_that_may_not_grow_are_refused(verb, folder):
    # A quota looks so from inside, and needs no right to mount.
    end, files = ended(folder(verb), "ulimit -f 0; trap '' XFSZ", verb)
    assert re.search("File too large|cannot be written, nor any other folder", message(end))
    assert_nothing_is_unfinished(files)


SIZES = (100_000, 300_000, 420_000, 600_000, 900_000, 1_200_000, 8_000_000)
"""Limits of memory in KiB, from too little for the libraries to enough for a run."""


@pytest.mark.full
@pytest.mark.parametrize("kind", ["v", "d"])
@pytest.mark.parametrize("verb", ["new", "run", "replay"])
def test_a_limit_of_memory_is_kept_or_refused(kind, verb, folder):
    inputs = folder(verb)
    for size in SIZES:
        end, files = ended(inputs, f"ulimit -{kind} {size}", verb)
        if end.returncode:
            assert re.search("memory", message(end)), (size, end)
        assert_nothing_is_unfinished(files if end.returncode else ())
        for name in ("out", "mine.py", "parity_reports"):
            subprocess.run(["rm", "-rf", inputs / name], check=True)
    assert end.returncode == 0, end


@pytest.mark.parametrize("files", [20, 63])
@of_verbs
def test_few_open_files_are_refused_at_once(verb, files, folder):
    inputs = folder(verb)
    before = {f"./{path.relative_to(inputs)}" for path in inputs.rglob("*")}
    end, after = ended(inputs, f"ulimit -n {files}", verb)
    assert "ulimit -n" in message(end)
    assert after == before


def _other_user():
    """A program whose child has the files of root and the limits of a user without any process."""
    user, rights = str(random.randrange(10**6, 10**9)), "-all,+dac_override"
    ids = (f"--reuid={user}", f"--regid={user}", "--clear-groups")
    kinds = ("bounding-set", "inh-caps", "ambient-caps")
    prefix = ("setpriv", *ids, *(f"--{kind}={rights}" for kind in kinds))
    if shutil.which(prefix[0]) is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("all programs of a user count, and this process cannot become another user")
    return prefix


@pytest.mark.parametrize("processes", [3, 24])
@of_verbs
def test_few_processes_are_refused_at_once(verb, processes, folder):
    inputs = folder(verb)
    before = {f"./{path.relative_to(inputs)}" for path in inputs.rglob("*")}
    end, after = ended(inputs, f"ulimit -u {processes}", verb, _other_user())
    assert "ulimit -u" in message(end)
    assert after == before


@of_verbs
def test_a_present_folder_that_is_gone_is_refused(verb, folder):
    inputs = folder(verb)
    (inputs / "gone").mkdir()
    end, _ = ended(inputs, "cd gone; rmdir ../gone", verb)
    assert "the present folder is gone" in message(end)


@pytest.mark.parametrize("name", first_in_test(["torch", "json"]))
def test_a_user_s_file_hides_no_library(name, folder):
    inputs = folder("report")
    (inputs / f"{name}.py").write_text("raise SystemExit(0)")
    end, _ = ended(inputs, "", "report")
    assert end.returncode == 0, end


@pytest.mark.full
@pytest.mark.parametrize("verb", ["run", "self-test"])
def test_as_many_processes_as_the_program_asks_for_are_enough(verb, folder):
    inputs = folder(verb)
    inputs.chmod(0o777)
    # The shell, the process that waits for the program, the program, and its thread that waits for signals.
    end, _ = ended(inputs, f"ulimit -u {threads.least() + 4}", verb, _other_user())
    assert end.returncode == 0, end


@pytest.mark.parametrize("kind", ["v", "d"])
def test_too_little_memory_for_the_libraries_is_refused(kind, folder):
    end, files = ended(folder("new"), f"ulimit -{kind} 100000", "report")
    assert "machine: the program needs 0.312 GiB of memory" in message(end)
    assert files == {"./ratings"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--case", "pipe.yaml"),
        ("run", "--case", "hstu_tiny", "--precision", "fp32", "--data", "pipe.yaml"),
        ("run", "--case", "dlrm_kaggle", "--precision", "fp32", "--data", "pipe.yaml"),
        ("run", "--case", "dlrm_tiny", "--precision", "fp32", "--weights", "pipe.yaml"),
        ("precision", "--case", "dlrm_tiny", "--policy", "pipe.yaml"),
        ("compare", "pipe.yaml", "pipe.yaml"),
        ("replay", "pipe.yaml"),
        ("resume", "pipe.yaml"),
    ],
    ids=["case", "ratings", "clicks", "weights", "policy", "compare", "replay", "resume"],
)
@pytest.mark.parametrize("endless", [None, "/dev/zero", "/dev/full"], ids=["pipe", "zeros", "full"])
def test_an_input_without_an_end_is_refused(arguments, endless, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    if endless is None:
        os.mkfifo("pipe.yaml")
    else:
        os.symlink(endless, "pipe.yaml")

    def stop(*_):
        raise TimeoutError("it waits for the end")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(300)
    try:
        refused = command(*arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    assert refused.code == 2, refused
    assert "pipe.yaml" in refused.err


WITHOUT_TRIPY = """
import sys
from click.testing import CliRunner
import run_parity

for words in sys.argv[1:]:
    ended = CliRunner().invoke(run_parity.main, words.split())
    print(ended.exit_code, ended.stderr.splitlines()[-1])
"""


def test_verbs_that_need_the_port_are_refused_where_tripy_is_not_installed(tmp_path):
    (tmp_path / "nvtripy.py").write_text("raise ModuleNotFoundError(\"No module named 'nvtripy'\")")
    calls = (
        "precision --case hstu_tiny",
        "stream --case hstu_tiny",
        "shrink small --case hstu_tiny --precision fp32",
        "self-test --case dlrm_tiny --clean-runs 0",
        "serve --case dlrmv3_tiny",
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-c", WITHOUT_TRIPY, *calls]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    lines = ended.stdout.splitlines()
    assert len(lines) == len(calls)
    assert {line.partition(";")[0] for line in lines} == {
        "2 error: runner: tripy is unavailable: No module named 'nvtripy'"
    }
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["nvtripy.py"]
