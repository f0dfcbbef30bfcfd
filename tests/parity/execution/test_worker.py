"""Runners in processes: their results, and a status with a reason for each way to die."""

import os
import runpy
import signal
import subprocess
import sys
from multiprocessing.util import Finalize
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import parity.execution.scheduler
from cases.shipped import load_case
from parity.base.code import shown
from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.capture.captures import Capture, ModuleCall
from parity.capture.slices import MemoryBudget
from parity.capture.store import open_capture, save_capture
from parity.case import CaseReference
from parity.execution.commands import Commands
from parity.execution.loaded import Abilities
from parity.execution.record import RunnerFailure, Status
from parity.execution.scheduler import RunnerPool
from parity.execution.worker import _answer
from parity.inputs import weights
from parity.runners.base import Unavailable
from parity.runners.torch.eager import TorchRunner
from tests.locations import ROOT

FP32, TF32 = PRECISIONS["fp32"], PRECISIONS["tf32"]
NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has tf32")


class Variable:
    """Becomes the value of an environment variable in the process that receives it."""

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return os.getenv, (self.name, "unset")


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    runners = RunnerPool(tmp_path_factory.mktemp("worker"), timeout=120.0)
    yield runners
    runners.stop()


@pytest.fixture
def process(pool):
    """The live process of the reference; a test that ends it leaves the next test a new one."""
    process = pool.get("torch", FP32)
    process.request(Commands.start, 1)
    return process


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    weights.export({"weight": torch.ones(1)}, folder)
    return folder


def _failure(process, *request):
    with pytest.raises(RunnerFailure) as caught:
        process.request(*request)
    return caught.value


def _refusal(process, *request):
    with pytest.raises(UserError) as caught:
        process.request(*request)
    return caught.value


def _is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_come_back(process):
    label = f"torch dense (eager, {'cuda' if torch.cuda.is_available() else 'cpu'})"
    assert process.request(Commands.start, 1) == Abilities(
        label, taps_modules=True, appends=True, builds=False, measures_coverage=True
    )
    assert process.pid != os.getpid()


def test_an_exception_is_an_error_with_its_first_line_and_the_process_lives_on(process):
    failure = _failure(process, Commands.call, f"{__name__}:_lost")
    assert failure.status is Status.ERROR
    assert failure.reason.startswith("_Lost: first (")
    assert str(failure) == f"ERROR: {failure.reason}"
    assert process.request(Commands.start, 1).label


def test_bad_input_stays_the_user_s_and_the_process_lives_on(process):
    refusal = _refusal(process, Commands.load, CaseReference(target="nowhere:case"), FP32, Path("nowhere"))
    assert (refusal.field, refusal.value) == ("case", "nowhere:case")
    assert refusal.fix
    assert process.request(Commands.start, 1).label


@pytest.mark.parametrize("kind", ["SystemExit(0)", "KeyboardInterrupt", "GeneratorExit", "BaseException"])
def test_code_that_would_end_the_process_is_an_error_and_the_process_lives_on(process, kind):
    failure = _failure(process, Commands.call, "builtins:exec", f"raise {kind}")
    assert failure.status is Status.ERROR
    assert failure.reason.startswith(f"{kind.partition('(')[0]}: ")
    assert process.request(Commands.start, 1).label


class _Stays(Exception):
    """In place of a thread that waits for the end of the program."""


def _stay():
    raise _Stays


@pytest.mark.parametrize("code", ["pass", "raise OSError"], ids=["result", "error"])
def test_an_answer_that_comes_while_the_program_ends_is_none(process, monkeypatch, code):
    monkeypatch.setattr("parity.execution.worker.stay_if_ending", _stay)
    with pytest.raises(_Stays):
        process.request(Commands.call, "builtins:exec", code)


@NO_CUDA
def test_what_cannot_run_here_is_unavailable_with_the_reason(process, exported):
    failure = _failure(process, Commands.load, load_case("hstu_tiny").reference, TF32, exported)
    assert failure.status is Status.UNAVAILABLE
    assert failure.reason == "tf32 needs a CUDA device and PyTorch sees none"


def test_an_allocation_that_fails_is_out_of_memory_and_the_process_lives_on(process, exported):
    case = load_case("hstu_tiny")
    # 2 PB: more than any address space, so that no system grants it and hopes.
    huge = case.with_sizes({"model.num_items": 2**45})
    failure = _failure(process, Commands.load, huge.reference, FP32, exported)
    assert failure.status is Status.OUT_OF_MEMORY
    assert "can't allocate memory" in failure.reason
    assert process.alive


def test_a_hang_is_stopped_at_its_limit(process):
    pid = process.pid
    os.kill(pid, signal.SIGSTOP)
    process.timeout = 0.3
    failure = _failure(process, Commands.start, 1)
    assert failure.status is Status.TIMED_OUT
    assert failure.reason == "no answer to 'start' within 0.3 s; stopped"
    assert not process.alive
    assert not _is_running(pid)


def test_a_crash_names_the_signal_and_the_last_line_of_the_log(process):
    _refusal(process, Commands.run, Path("/no/such/input"), Path("stem"))
    os.kill(process.pid, signal.SIGABRT)
    failure = _failure(process, Commands.start, 1)
    assert failure.status is Status.CRASHED
    assert failure.reason.startswith(
        "signal SIGABRT during 'start': parity.base.errors.UserError: inputs: /no/such/input cannot be read"
    )


def test_the_last_line_is_the_process_s_own(pool, process):
    _refusal(process, Commands.run, Path("/no/such/input"), Path("stem"))
    os.kill(process.pid, signal.SIGKILL)
    _failure(process, Commands.start, 1)
    # Its log starts with what an earlier process printed, and ends with a stack dump.
    process = pool.get("torch", FP32)
    process.request(Commands.start, 1)
    os.kill(process.pid, signal.SIGSEGV)
    assert _failure(process, Commands.start, 1).reason == "signal SIGSEGV during 'start'"


def test_a_process_that_the_system_kills_is_out_of_memory_and_the_next_request_gets_a_new_one(pool, process):
    os.kill(process.pid, signal.SIGKILL)
    failure = _failure(process, Commands.start, 1)
    assert failure.status is Status.OUT_OF_MEMORY
    assert failure.reason == "killed during 'start', most likely by the system for lack of memory"
    fresh = pool.get("torch", FP32)
    assert fresh.pid != process.pid
    assert fresh.request(Commands.start, 1).label.startswith("torch dense")
    assert pool.get("torch", FP32) is fresh


def test_only_tf32_may_round_to_tf32(pool, process):
    plain = _refusal(process, Commands.run, Variable("NVIDIA_TF32_OVERRIDE"), Path("stem"))
    assert "inputs: 0 cannot be read" in str(plain)
    separate = pool.get("torch", TF32)
    assert separate.pid != process.pid
    separate.request(Commands.start, 1)
    rounding = _refusal(separate, Commands.run, Variable("NVIDIA_TF32_OVERRIDE"), Path("stem"))
    assert "inputs: unset cannot be read" in str(rounding)
    assert pool.get("torch", PRECISIONS["bf16"]) is process


def test_a_process_has_the_environment_of_the_moment(tmp_path, process, monkeypatch):
    # The server that it is forked from runs by now.
    monkeypatch.setenv("PARITY_TEST_VARIABLE", "set later")
    runners = RunnerPool(tmp_path, timeout=120.0)
    try:
        later = runners.get("torch", FP32)
        later.request(Commands.start, 1)
        refusal = _refusal(later, Commands.run, Variable("PARITY_TEST_VARIABLE"), Path("stem"))
        assert "inputs: set later cannot be read" in str(refusal)
    finally:
        runners.stop()


_IN_A_PROCESS = """
import sys
from pathlib import Path

sys.path.insert(0, {root!r})
from parity.base.precision import PRECISIONS
from parity.execution.commands import Commands
from parity.execution.scheduler import RunnerPool

if __name__ == "__main__":
    pool = RunnerPool(Path.cwd(), timeout=120.0)
    text = "'parity.runners.oracle.float64' in __import__('sys').modules"
    print(pool.get("torch", PRECISIONS["fp32"]).request(Commands.call, "builtins:eval", text))
    pool.stop()
"""


def test_a_process_begins_with_the_modules_of_all_runs_in_any_folder(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(_IN_A_PROCESS.format(root=str(ROOT)))
    ended = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.stdout == "True\n", ended.stderr


def test_the_command_s_file_imports_nothing_in_a_process_of_a_runner():
    # multiprocessing imports the main file of the parent under this name.
    assert "main" not in runpy.run_path("run_parity.py", run_name="__mp_main__")


def test_a_stopped_pool_leaves_no_process(tmp_path, monkeypatch):
    started = []

    class Fake:
        alive = True

        def __init__(self, name, log, timeout, environment):
            self.arguments = name, log.name, timeout, environment
            started.append(self)

        def dismiss(self):
            self.is_dismissed = True

        def stop(self, patience):
            assert all(process.is_dismissed for process in started)
            self.alive = False

    monkeypatch.setattr(parity.execution.scheduler, "RunnerProcess", Fake)
    pool = RunnerPool(tmp_path / "worker", timeout=5.0)
    pool.get("oracle", FP32)
    pool.get("tripy", TF32)
    pool.stop()
    assert [process.arguments for process in started] == [
        ("oracle", "oracle.log", 5.0, {"NVIDIA_TF32_OVERRIDE": "0"}),
        ("tripy", "tripy.log", 5.0, {}),
    ]
    assert not any(process.alive for process in started)


class CleaningUp:
    """On the pipe to a runner's process; there, it becomes something that is cleaned up at the end."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Finalize, (None, self.trace.touch, (), None, 0)


def test_a_process_that_is_not_asked_any_more_cleans_up_behind_itself(tmp_path):
    runners = RunnerPool(tmp_path / "worker", timeout=120.0)
    process = runners.get("torch", FP32)
    _failure(process, Commands.run, CleaningUp(tmp_path / "trace"), Path("stem"))
    runners.stop()
    assert not process.alive
    assert (tmp_path / "trace").exists()


def test_a_process_that_still_computes_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(parity.execution.scheduler, "PATIENCE", 0.2)
    runners = RunnerPool(tmp_path / "worker", timeout=120.0)
    process = runners.get("torch", FP32)
    process.request(Commands.start, 1)
    os.kill(process.pid, signal.SIGSTOP)
    runners.stop()
    assert not process.alive
    assert not _is_running(process.pid)


class _Lost(Exception):
    pass


def _lost():
    raise _Lost("first\nsecond")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (Unavailable("no such device"), Status.UNAVAILABLE, "no such device"),
        (MemoryError(), Status.OUT_OF_MEMORY, "allocation failed during 'run'"),
        (torch.OutOfMemoryError("Tried 2 GiB"), Status.OUT_OF_MEMORY, "Tried 2 GiB"),
        (RuntimeError("\n CUDA out of memory \nmore"), Status.OUT_OF_MEMORY, "CUDA out of memory"),
        (_Lost("first\nsecond"), Status.ERROR, "_Lost: first (HERE in run)"),
        (_Lost(), Status.ERROR, "_Lost: no message (HERE in run)"),
    ],
    ids=["unavailable", "python", "torch", "text", "error", "silent"],
)
def test_what_a_runner_raises_becomes_a_status(error, status, reason):
    def run():
        raise error

    here = f"{shown(Path(__file__))}:{run.__code__.co_firstlineno + 1}"
    told = _answer(SimpleNamespace(run=run), "run", (), {})
    assert told == (status, reason.replace("HERE", here))


def test_ctrl_c_in_a_runner_of_somebody_else_s_process_is_for_that_process():
    def run():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _answer(SimpleNamespace(run=run), "run", (), {})


@pytest.fixture
def isolated(tmp_path, monkeypatch):
    """Runs two recorded calls alone; `isolated(error)` makes the second one raise it."""
    calls = [ModuleCall(name, name, "Kind", [], {}, (name,)) for name in ("good", "bad")]
    save_capture(Capture(calls=calls), tmp_path / "calls")
    monkeypatch.setattr(Commands, "_inputs", lambda self, path: {})

    def run(error):
        def run_call(self, call, inputs, arrays, whole=True):
            if call.tap == "bad":
                raise error
            return {call.tap: torch.ones(2)}

        monkeypatch.setattr(TorchRunner, "run_call", run_call)
        commands = Commands("torch")
        commands._started = TorchRunner()
        commands._case = load_case("hstu_tiny")
        stems = tmp_path / "calls", tmp_path / "isolated"
        return commands.run_isolated(Path("inputs"), *stems, MemoryBudget())

    return run


def test_a_module_that_raises_alone_is_a_problem_and_the_others_are_kept(isolated, tmp_path):
    (problem,) = isolated(_Lost("no")).items()
    assert problem[0] == "bad"
    assert problem[1].startswith(f"_Lost: no ({shown(Path(__file__))}:")
    assert list(open_capture(tmp_path / "isolated").tensors) == ["good"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_module_that_would_end_its_process_alone_is_a_problem(isolated, monkeypatch, kind):
    monkeypatch.setattr("parity.base.interruption._is_ours", True)
    assert list(isolated(kind())) == ["bad"]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("out of memory")], ids=["python", "text"])
def test_a_module_that_runs_out_of_memory_alone_ends_the_runner(isolated, error):
    with pytest.raises(type(error)):
        isolated(error)


def test_a_module_alone_waits_for_memory_of_the_gpu(isolated, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    given_back = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(True))
    monkeypatch.setattr("parity.execution.gpu_memory._PAUSE", 0.001)
    monkeypatch.setattr("parity.execution.gpu_memory.PATIENCE", 0.05)
    with pytest.raises(RuntimeError, match="out of memory"):
        isolated(RuntimeError("out of memory"))
    assert len(given_back) > 1
