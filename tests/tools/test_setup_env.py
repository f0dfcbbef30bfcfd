"""The set-up of `.venv`: its Python, its repetition, its refusals, and the arguments from make."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import setup_env
from tools.setup_env import SetupError

ROOT = setup_env.ROOT
NATIVE = ("tensorrt-cu12", "tensorrt_cu12_libs", "mlir-tensorrt-compiler", "mlir_tensorrt_runtime")
HARMLESS = ("nvtripy", "tensorrt-rtx-cu13", "tripy-portable", "torch", "tensorboard")

# Commands that make an environment: venv, six installations or checks.
STEPS = 7


def fake_python(path: Path, version: tuple = (3, 11, 7), names: tuple[str, ...] = ("pip",)) -> str:
    """An executable at `path` that answers the probe as a Python of this version would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    answer = json.dumps({"version": version, "base": str(path), "names": names})
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the files that the environment is made from."""
    root = tmp_path / "checkout"
    for name in setup_env.INPUTS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return root


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replaces the installing by a record of its commands; the first one makes a `.venv` that answers."""
    recorded: list[list[str]] = []

    def record(command: list[str], root: Path, hint: str) -> None:
        recorded.append(command)
        if "venv" in command:
            fake_python(root / ".venv/bin/python")

    monkeypatch.setattr(setup_env, "run", record)
    monkeypatch.setattr(setup_env.platform, "machine", lambda: "x86_64")
    return recorded


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A supported interpreter, as the one that runs the set-up."""
    path = fake_python(tmp_path / "bin/python3")
    monkeypatch.setattr(sys, "executable", path)
    return path


class TestInterpreter:
    @pytest.fixture(autouse=True)
    def _only_ours_on_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        monkeypatch.setattr(setup_env, "SUPPORTED", ((3, 11), (3, 98)))  # 3.98: on no machine's PATH but ours

    def test_the_running_one_if_supported(self, python: str) -> None:
        assert setup_env.choose_interpreter(None).base == python

    def test_another_on_path_if_the_running_one_is_too_new(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(setup_env, "SUPPORTED", ((3, 98),))
        monkeypatch.setattr(sys, "executable", fake_python(tmp_path / "bin/python3", (3, 99, 0)))
        other = fake_python(tmp_path / "bin/python3.98", (3, 98, 1))
        assert setup_env.choose_interpreter(None).base == other

    def test_an_idle_shim_is_passed_over(self, tmp_path: Path) -> None:
        shim = tmp_path / "shim"
        shim.write_text("#!/bin/sh\necho 'command not found in this version' >&2\nexit 127\n")
        shim.chmod(0o755)
        assert setup_env.probe(str(shim)) is None

    def test_the_real_one_answers(self) -> None:
        actual = setup_env.probe(sys.executable)
        assert actual is not None
        assert actual.version == sys.version_info[:3]
        assert "pytest" in actual.names
        assert Path(actual.base).resolve() == Path(sys.executable).resolve()

    def test_a_requested_one_is_never_replaced(self, python: str, tmp_path: Path) -> None:
        old = fake_python(tmp_path / "old", (3, 9, 18))
        with pytest.raises(SetupError, match=r"Python 3\.11 or 3\.98 is needed(.|\n)*old: Python 3\.9\.18"):
            setup_env.choose_interpreter(old)

    def test_a_requested_one_that_is_missing_is_named(self, python: str) -> None:
        with pytest.raises(SetupError, match=r"/nowhere/python: not there(.|\n)*make PYTHON="):
            setup_env.choose_interpreter("/nowhere/python")


class TestNative:
    @pytest.mark.parametrize("name", NATIVE)
    def test_refused_with_the_way_to_run(
        self, checkout: Path, tmp_path: Path, name: str, steps: list
    ) -> None:
        container = fake_python(tmp_path / "bin/container", names=("pip", "nvtripy", name))
        with pytest.raises(SetupError, match=name) as error:
            setup_env.ensure(checkout, container)
        assert "pip install -r requirements.txt && python run_parity.py" in str(error.value)
        assert steps == []

    def test_also_when_not_asked_for_by_name(
        self, checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list
    ) -> None:
        container = fake_python(tmp_path / "bin/container", names=("tensorrt-cu12",))
        monkeypatch.setattr(sys, "executable", container)
        with pytest.raises(SetupError, match="tensorrt-cu12"):
            setup_env.ensure(checkout, None)
        assert steps == []

    @pytest.mark.parametrize("name", HARMLESS)
    def test_others_are_not_native(self, tmp_path: Path, name: str) -> None:
        setup_env.choose_interpreter(fake_python(tmp_path / "python", names=(name,)))


class TestFreshness:
    def test_made_once_then_left_alone(
        self, checkout: Path, python: str, steps: list, capsys: pytest.CaptureFixture
    ) -> None:
        setup_env.ensure(checkout, None)
        said = capsys.readouterr().out
        assert "missing" in said
        assert "torch 2.13.0, fbgemm-gpu-cpu 1.8.0, nvtripy 0.1.7" in said
        result = len(steps)
        assert result == STEPS
        setup_env.ensure(checkout, None)
        assert len(steps) == result
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize("name", setup_env.INPUTS)
    def test_stale_after_a_change_of(self, checkout: Path, python: str, steps: list, name: str) -> None:
        setup_env.ensure(checkout, None)
        with (checkout / name).open("a") as file:
            file.write("# changed\n")
        assert not setup_env.is_current(checkout, None)

    def test_stale_after_a_change_of_its_python(self, checkout: Path, python: str, steps: list) -> None:
        setup_env.ensure(checkout, None)
        fake_python(checkout / ".venv/bin/python", (3, 11, 9))
        assert not setup_env.is_current(checkout, None)

    def test_stale_when_its_python_is_gone(self, checkout: Path, python: str, steps: list) -> None:
        setup_env.ensure(checkout, None)
        (checkout / ".venv/bin/python").unlink()
        assert not setup_env.is_current(checkout, None)

    def test_stale_when_another_python_is_asked_for(
        self, checkout: Path, python: str, steps: list, tmp_path: Path
    ) -> None:
        setup_env.ensure(checkout, None)
        other = setup_env.probe(fake_python(tmp_path / "bin/other", (3, 12, 1)))
        assert not setup_env.is_current(checkout, other)

    def test_stale_after_the_checkout_moved(self, checkout: Path, python: str, steps: list) -> None:
        setup_env.ensure(checkout, None)
        moved = checkout.rename(checkout.with_name("moved"))
        assert not setup_env.is_current(moved, None)

    @pytest.mark.parametrize("step", range(STEPS))
    def test_interrupted_is_redone_from_nothing(
        self, checkout: Path, python: str, steps: list, monkeypatch: pytest.MonkeyPatch, step: int
    ) -> None:
        setup_env.ensure(checkout, None)
        with (checkout / "constraints.txt").open("a") as file:
            file.write("# changed\n")
        record = setup_env.run
        leftover = checkout / ".venv/leftover"

        def interrupt(command: list[str], root: Path, hint: str) -> None:
            record(command, root, hint)
            if len(steps) == STEPS + step + 1:
                leftover.touch()
                raise KeyboardInterrupt

        monkeypatch.setattr(setup_env, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            setup_env.ensure(checkout, None)
        assert not setup_env.is_current(checkout, None)
        setup_env.ensure(checkout, None)
        assert setup_env.is_current(checkout, None)
        assert not leftover.exists()

    def test_a_failing_step_says_which_and_what_next(self, checkout: Path) -> None:
        said = r"no such wheel\nSet-up failed: `sh (.|\n)*ended with 3\. See the log"
        with pytest.raises(SetupError, match=said):
            setup_env.run(["sh", "-c", "echo no such wheel >&2; exit 3"], checkout, "See the log")


class TestTriton:
    """Added by itself, where torch has not brought it, so that it changes nothing else."""

    def test_it_is_added_without_what_it_asks_for(self, checkout: Path, python: str, steps: list) -> None:
        setup_env.ensure(checkout, None)
        (command,) = (step for step in steps if setup_env.TRITON in step)
        assert command[-3:] == ["install", "--no-deps", setup_env.TRITON]

    @pytest.mark.parametrize(
        ("machine", "version", "names"),
        [
            ("aarch64", (3, 11, 7), ("pip",)),
            ("x86_64", (3, 10, 1), ("pip",)),
            ("x86_64", (3, 12, 1), ("pip", "triton")),
        ],
        ids=["no wheel for the machine", "none for the Python", "torch brought its own"],
    )
    def test_it_is_left_out(
        self, monkeypatch: pytest.MonkeyPatch, machine: str, version: tuple, names: tuple
    ) -> None:
        monkeypatch.setattr(setup_env.platform, "machine", lambda: machine)
        assert not setup_env.wants_triton(setup_env.Interpreter("python", "python", version, names))

    def test_no_requirement_asks_for_it(self) -> None:
        asked = [(ROOT / name).read_text() for name in setup_env.REQUIREMENTS]
        assert not re.search(r"^triton", "\n".join(asked), flags=re.MULTILINE | re.IGNORECASE)


def test_what_would_divert_an_installation_is_dropped() -> None:
    user = {"PYTHONPATH": "/mine", "PIP_TARGET": "/mine", "PIP_INDEX_URL": "https://mirror", "HOME": "/home"}
    assert setup_env.clean_environment(user) == {"PIP_INDEX_URL": "https://mirror", "HOME": "/home"}


def test_every_named_requirement_is_pinned() -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    pinned = {name.lower() for name in re.findall(r"^([\w.-]+)==", constraints, flags=re.MULTILINE)}
    files = [name for name in setup_env.REQUIREMENTS if name != "constraints.txt"]
    required = "".join((ROOT / name).read_text() for name in files)
    named = {name.lower() for name in re.findall(r"^(\w[\w.-]*)", required, flags=re.MULTILINE)}
    assert named
    assert named | {"colored", *setup_env.ANNOUNCED} <= pinned


def test_the_supported_pythons_are_those_of_the_metadata() -> None:
    for project in ("pyproject.toml", "portable/pyproject.toml"):
        assert 'requires-python = ">=3.10,<3.13"' in (ROOT / project).read_text()
    assert sorted(setup_env.SUPPORTED) == [(3, 10), (3, 11), (3, 12)]


class TestMake:
    @pytest.fixture
    def project(self, tmp_path: Path) -> Path:
        """A checkout whose set-up does nothing and whose `.venv/bin/python` prints what it was given."""
        for name in ("Makefile", ".ci/run"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
        (tmp_path / "tools").mkdir()
        (tmp_path / "tools/setup_env.py").write_text("")
        python = tmp_path / ".venv/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(
            '#!/bin/sh\necho "called: $*"; env\n'
            'case "$*" in *"${FAIL_AT:-nothing}"*) exit 1;; esac\nexit ${FAIL:-0}\n'
        )
        python.chmod(0o755)
        return tmp_path

    def make(self, command: list[str], project: Path, **variables: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, "PYTHON": sys.executable, **variables}
        return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)

    def calls(self, output: str) -> list[str]:
        """Arguments of the calls of `.venv`'s interpreter, in order."""
        return re.findall(r"^called: (.*)$", output, flags=re.MULTILINE)

    def test_the_two_test_targets_differ_in_their_selection_only(self, project: Path) -> None:
        *_, quick = self.calls(self.make(["make", "test", "ARGS=-k x"], project).stdout)
        (full,) = self.calls(self.make(["make", "test-full", "ARGS=-k x"], project).stdout)
        assert "-m pytest" in quick
        assert quick.endswith("-m not full -k x")
        assert full == quick.replace("-m not full", "-m full")

    def test_ci_runs_lint_and_both_selections(self, project: Path) -> None:
        calls = self.calls(self.make([str(project / ".ci/run")], project).stdout)
        assert [call for call in calls if "pytest" in call] == calls[-2:]
        assert "-m not full" in calls[-2]
        assert "-m full" in calls[-1]
        assert any("ruff check" in call for call in calls[:-2])

    def test_ci_runs_the_full_selection_also_when_the_other_fails(self, project: Path) -> None:
        done = self.make([str(project / ".ci/run")], project, FAIL_AT="not full")
        assert done.returncode != 0
        assert "-m full" in self.calls(done.stdout)[-1]

    @pytest.mark.parametrize("target", ["parity", "test", "test-full"])
    def test_the_users_python_path_does_not_leak_in(self, project: Path, target: str) -> None:
        done = self.make(["make", target], project, PYTHONPATH="/mine", PYTHONHOME="")
        assert done.returncode == 0, done.stderr
        assert "called: " in done.stdout
        assert "PYTHONPATH" not in done.stdout
        assert "PYTHONHOME" not in done.stdout

    def test_arguments_reach_run_parity(self, project: Path) -> None:
        done = self.make(["make", "parity", "ARGS=--case x"], project)
        assert "called: run_parity.py --case x" in done.stdout

    def test_a_missing_python_is_named(self, project: Path) -> None:
        done = self.make(["make", "parity", "PYTHON=/nowhere/python"], project)
        assert done.returncode != 0
        assert "/nowhere/python is missing or too old" in done.stderr
        assert "called" not in done.stdout

    @pytest.mark.parametrize("fail", ["0", "1"])
    def test_ci_fails_when_the_tests_do(self, project: Path, fail: str) -> None:
        done = self.make([str(project / ".ci/run")], project, FAIL=fail)
        assert (done.returncode != 0) == (fail == "1")
        assert "CI=true" in done.stdout
