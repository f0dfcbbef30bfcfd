"""Environment variables that the program or its libraries read: a wrong value is refused before any work."""

import os
import subprocess
import sys

import pytest

from parity.base.errors import UserError
from parity.base.variables import require_variables
from tests.locations import ROOT

RIGHT = {
    "OMP_NUM_THREADS": ["1", "16", "4,2", " 4 , 2 ", "+3", "007"],
    "OMP_THREAD_LIMIT": ["8"],
    "MKL_NUM_THREADS": ["", "2"],
    "OPENBLAS_NUM_THREADS": ["", "2"],
    "CUDA_VISIBLE_DEVICES": [
        "",
        "-1",
        "0",
        "1,0",
        " 0, 1",
        "NoDevFiles",
        "GPU-8932f937-d72c",
        "MIG-GPU-8/1/0",
    ],
    "TRIPY_PORTABLE_FUSE": ["0", "1"],
    "NVIDIA_TF32_OVERRIDE": ["0", "1"],
    "OMP_WAIT_POLICY": ["active", "PASSIVE"],
    "ONEDNN_MAX_CPU_ISA": ["", "all", "AVX2", "avx512_core_amx_fp16", "AVX10_1_512_AMX", "avx10_2_512_amx_2"],
    "DNNL_MAX_CPU_ISA": ["AVX512_CORE_BF16"],
}
WRONG = {
    "OMP_NUM_THREADS": ["", "abc", "-1", "0", "4,", ",4", "4,0", "1.5", "1_0", "\u0664", "4;2"],
    "OMP_THREAD_LIMIT": ["", "0", "4,2"],
    "MKL_NUM_THREADS": ["abc", "0", "-1"],
    "OPENBLAS_NUM_THREADS": ["abc", "0", "-2"],
    "GOTO_NUM_THREADS": ["x"],
    "CUDA_VISIBLE_DEVICES": ["cuda:0", "zero", "0,,1", "0,", "-2", "0 1", "GPU"],
    "TRIPY_PORTABLE_CUDA_GRAPHS": ["", "yes", "2"],
    "TRIPY_PORTABLE_NO_CALL_STACKS": ["true"],
    "NVIDIA_TF32_OVERRIDE": ["on"],
    "OMP_WAIT_POLICY": ["", "sleep"],
    "ONEDNN_MAX_CPU_ISA": ["FAST", "AVX512", "AVX512_AMX", "AVX2 "],
    "DNNL_MAX_CPU_ISA": ["avx3"],
}


def pairs(values):
    return [(name, value) for name, texts in values.items() for value in texts]


@pytest.mark.parametrize(("name", "value"), pairs(RIGHT))
def test_a_right_value_is_accepted(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    require_variables()


@pytest.mark.parametrize(("name", "value"), pairs(WRONG))
def test_a_wrong_value_is_refused(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as refused:
        require_variables()
    assert (refused.value.field, refused.value.value) == (name, repr(value))


@pytest.fixture
def folders(monkeypatch):
    """The folder for temporary files is asked for anew, and no variable names one."""
    monkeypatch.setattr("tempfile.tempdir", None)
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("name", ["TMPDIR", "TEMP", "TMP"])
@pytest.mark.parametrize(("place", "problem"), [("none", "is no folder"), ("file", "is no folder")])
def test_a_folder_that_cannot_be_used_is_not_replaced(folders, tmp_path, name, place, problem):
    (tmp_path / "file").touch()
    folders.setenv(name, str(tmp_path / place))
    with pytest.raises(UserError, match=f"^{name}: {tmp_path / place} {problem}; set it to another folder"):
        require_variables()


def test_a_folder_that_cannot_be_written_is_not_replaced(folders):
    folders.setenv("TMPDIR", "/proc")
    with pytest.raises(
        UserError, match="^TMPDIR: /proc cannot be written; set it to another folder, or unset it"
    ):
        require_variables()


@pytest.mark.parametrize("text", [".", "here", "here/", "../{}/here", ""])
def test_every_spelling_of_a_folder_is_accepted(folders, tmp_path, text):
    (tmp_path / "here").mkdir()
    folders.chdir(tmp_path)
    folders.setenv("TMPDIR", text.format(tmp_path.name))
    require_variables()


@pytest.mark.parametrize(
    "program", [("run_parity.py", "list"), ("-m", "parity", "list"), ("-m", "reference.train")]
)
def test_a_program_refuses_at_once(program):
    ended = subprocess.run(
        [sys.executable, *program],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "abc"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "error: OMP_NUM_THREADS: 'abc' is no positive number of threads; give one such as 4, or unset it\n"
    )


@pytest.mark.parametrize("name", ["PYTHONPATH", "TMPDIR"])
def test_bytes_that_are_no_text_are_refused(monkeypatch, name):
    monkeypatch.setenv(name, "/tmp/caf\udce9")
    with pytest.raises(UserError, match=rf"^{name}: '/tmp/caf\\udce9' has bytes that are no text"):
        require_variables()


@pytest.mark.parametrize("is_argument", [True, False])
def test_a_program_refuses_bytes_that_are_no_text(tmp_path, is_argument):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    ended = subprocess.run(
        [
            sys.executable,
            str(ROOT / "run_parity.py"),
            "new",
            *([folder + b"/out"] if is_argument else ["mine"]),
        ],
        cwd=tmp_path if is_argument else folder,
        capture_output=True,
    )
    field = b"arguments" if is_argument else b"present folder"
    assert ended.returncode == 2
    assert ended.stderr.startswith(b"error: " + field + b": '")
    assert b"has bytes that are no text in utf-8" in ended.stderr
    assert not os.listdir(folder)


def test_a_checkout_is_found_in_a_safe_path(tmp_path):
    """PYTHONSAFEPATH leaves the folder of the script out of Python's path."""
    ended = subprocess.run(
        [sys.executable, str(ROOT / "run_parity.py"), "new", "mine"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | {"PYTHONSAFEPATH": "1"},
        capture_output=True,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
