"""Verdicts in a process of a worker are those of this process, errors included."""

import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from cases.shipped import load_case
from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.execution.commands import Commands
from parity.execution.folder import PrecisionFolder, RunFolder
from parity.execution.record import RunnerFailure, Status
from parity.execution.scheduler import JUDGE, MAX_WORKERS, RunnerPool, Scheduler, Sharing
from parity.verdict.apart import judge_of, judged_here
from parity.verdict.batch import judge_batch

CASE = load_case("hstu_tiny")


@pytest.fixture
def pool(tmp_path):
    processes = RunnerPool(tmp_path / "logs", timeout=1.0)
    yield processes
    processes.stop()


@pytest.fixture
def apart(pool):
    scheduler = SimpleNamespace(judges_apart=True, cores_of_a_worker=2)
    return judge_of(SimpleNamespace(pool=pool, scheduler=scheduler), CASE)


@pytest.fixture
def folder(saved_run):
    return RunFolder(saved_run.folder).case(CASE.name).batch(0).precision("fp32")


def test_the_verdicts_are_those_of_this_process(apart, folder):
    here, there = (judge(CASE, folder, "typical", ["torch"]) for judge in (judge_batch, apart))
    assert [*there] == [*here]
    for name, judgement in here.items():
        assert judgement.taps
        assert repr(there[name]) == repr(judgement)


def test_a_damaged_file_has_the_same_message(apart, folder, tmp_path):
    batch = shutil.copytree(folder.batch.path, tmp_path / "batch")
    copied = PrecisionFolder(batch / folder.path.name)
    copied.record.write_text("{")
    with pytest.raises(UserError) as here:
        judge_batch(CASE, copied, "typical")
    with pytest.raises(UserError) as there:
        apart(CASE, copied, "typical", ())
    assert str(there.value) == str(here.value)


def test_the_request_of_a_process_has_the_verdicts_or_the_error(folder, tmp_path):
    """What the process runs, in this one."""
    expected = judge_batch(CASE, folder, "typical", ["torch"], 2)
    assert repr(judged_here(CASE.reference, folder, "typical", ["torch"], 2)) == repr(expected)
    assert repr(judged_here(CASE.reference, folder, "typical", [], 1)) == repr(
        judge_batch(CASE, folder, "typical")
    )
    batch = shutil.copytree(folder.batch.path, tmp_path / "batch")
    copied = PrecisionFolder(batch / folder.path.name)
    copied.record.write_text("{")
    with pytest.raises(UserError, match="record: .* is missing or damaged"):
        judged_here(CASE.reference, copied, "typical", [], 1)


def test_a_process_that_dies_is_named(apart, pool, folder):
    process = pool.get(JUDGE, PRECISIONS["fp32"])
    os.kill(process.pid, signal.SIGKILL)
    process._process.join()
    # A dead process is replaced, as a runner's is.
    assert apart(CASE, folder, "typical", ())
    process = pool.get(JUDGE, PRECISIONS["fp32"])
    process.timeout = 0.2
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(UserError, match="verdicts: hstu_tiny in batch typical have no result") as refusal:
        apart(CASE, folder, "typical", ())
    assert str(refusal.value).endswith("; give fewer rows with --batch")


def test_its_code_is_no_runner_s(apart, pool, folder):
    apart(CASE, folder, "typical", ())
    assert pool.code() == []


def test_few_workers_and_live_cases_judge_here(pool):
    few, many = (Scheduler(1, Sharing(count, count)) for count in (MAX_WORKERS, MAX_WORKERS + 1))
    assert judge_of(SimpleNamespace(pool=pool, scheduler=few), CASE) is judge_batch
    assert judge_of(SimpleNamespace(pool=pool, scheduler=many), CASE) is not judge_batch
    live = SimpleNamespace(is_live=True)
    assert judge_of(SimpleNamespace(pool=pool, scheduler=many), live) is judge_batch


def test_a_run_of_bounded_memory_judges_one_tap_at_a_time():
    asked = []

    def request(command, function, *arguments):
        asked.append(arguments[-1])
        return {}

    pool = SimpleNamespace(get=lambda label, precision: SimpleNamespace(request=request))
    worker = SimpleNamespace(pool=pool, scheduler=SimpleNamespace(judges_apart=True, cores_of_a_worker=3))
    for is_bounded in ((True,), (False,), ()):
        assert judge_of(worker, CASE, *is_bounded)(CASE, PrecisionFolder(Path("fp32")), "typical") == {}
    assert asked == [1, 3, 3]


def apart_with(request):
    """`judge_batch` in a process that answers so, and what was asked of the pool."""
    asked = []

    def get(*process):
        asked.append(process)
        return SimpleNamespace(request=request)

    scheduler = SimpleNamespace(judges_apart=True, cores_of_a_worker=2)
    return judge_of(SimpleNamespace(pool=SimpleNamespace(get=get), scheduler=scheduler), CASE), asked


def test_a_process_that_judges_runs_the_function_of_this_module():
    folder = PrecisionFolder(Path("bf16"))
    judge, asked = apart_with(lambda *request: request)
    command, function, *arguments = judge(CASE, folder, "typical", {"onnx", "torch"})
    assert asked == [(JUDGE, PRECISIONS["bf16"])]
    assert command == Commands.call
    assert function == "parity.verdict.apart:judged_here"
    assert arguments == [CASE.reference, folder, "typical", ["onnx", "torch"], 2]


def test_verdicts_that_a_process_does_not_give_name_case_batch_and_remedy():
    failure = RunnerFailure(Status.CRASHED, "signal 9")

    def request(*_):
        raise failure

    with pytest.raises(UserError) as refusal:
        apart_with(request)[0](CASE, PrecisionFolder(Path("fp32")), "typical")
    problem = f"in batch typical have no result ({failure})"
    expected = UserError("verdicts", CASE.name, problem, "give fewer rows with --batch")
    assert str(refusal.value) == str(expected)


def test_the_process_judges_as_many_taps_at_a_time_as_it_is_asked(monkeypatch):
    monkeypatch.setattr("parity.verdict.apart.judge_batch", lambda case, *given: (case.name, *given))
    folder = PrecisionFolder(Path("fp32"))
    asked = judged_here(CASE.reference, folder, "typical", ["torch"], 3)
    assert asked == (CASE.name, folder, "typical", ["torch"], 3)
