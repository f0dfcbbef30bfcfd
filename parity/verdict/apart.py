"""Verdicts on batches in a process of a worker, beside this one."""

from __future__ import annotations

from collections.abc import Collection

from parity.base.errors import UserError
from parity.base.precision import PRECISIONS
from parity.base.process import one_thread
from parity.case import Case, CaseReference, load_case
from parity.execution.commands import Commands
from parity.execution.folder import PrecisionFolder
from parity.execution.record import RunnerFailure
from parity.execution.scheduler import JUDGE, Worker
from parity.verdict.batch import JudgesBatch, judge_batch
from parity.verdict.judgement import RunnerJudgement


def judge_of(worker: Worker, case: Case, is_bounded: bool = False) -> JudgesBatch:
    """The function that judges batches of a case: `judge_batch`, here or in a process of the worker.

    Args:
        worker: The worker.
        case: The case.
        is_bounded: Whether the user bounds the memory of the run: then one tap is judged at a time.
    """
    if case.is_live or not worker.scheduler.judges_apart:
        return judge_batch
    return _Apart(worker, 1 if is_bounded else worker.scheduler.cores_of_a_worker).judge


class _Apart:
    """`judge_batch` in a process of a worker.

    Args:
        worker: The worker.
        threads: As of `judge_batch`.
    """

    def __init__(self, worker: Worker, threads: int) -> None:
        self._pool, self._threads = worker.pool, threads

    def judge(
        self, case: Case, folder: PrecisionFolder, batch: str, diagnosed: Collection[str] = ()
    ) -> dict[str, RunnerJudgement]:
        """As `judge_batch`.

        Raises:
            UserError: As of `judge_batch`, or the process has died.
        """
        process = self._pool.get(JUDGE, PRECISIONS[folder.path.name])
        arguments = (case.reference, folder, batch, sorted(diagnosed), self._threads)
        try:
            return process.request(Commands.call, f"{__name__}:{judged_here.__name__}", *arguments)
        except RunnerFailure as failure:
            problem = f"in batch {batch} have no result ({failure})"
            raise UserError("verdicts", case.name, problem, "give fewer rows with --batch") from failure


@one_thread()
def judged_here(
    reference: CaseReference, folder: PrecisionFolder, batch: str, diagnosed: Collection[str], threads: int
) -> dict[str, RunnerJudgement]:
    """The result of `judge_batch` in this process."""
    return judge_batch(load_case(reference), folder, batch, diagnosed, threads)
