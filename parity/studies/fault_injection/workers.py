"""A process for each core, which sends its findings while it works.

`joblib` is no replacement. A task sets up a bench, which takes seconds, and then yields hundreds of findings.
Each finding must be on disk at once, because a campaign of hours may be stopped. `joblib` returns the result
of a task at its end.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from multiprocessing.util import _run_finalizers
from typing import Any

from parity.base.errors import UserError
from parity.base.interruption import stay_if_ending, undoing
from parity.execution import fork_server

Work = Callable[..., Iterator[Any]]
"""Yields reports. A function of a module; its arguments and its reports can be pickled."""

_POLL_SECONDS = 1.0
_reports: Any = None
_no_call_stacks: AbstractContextManager | None = None


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def reports(tasks: Sequence[tuple[Work, tuple]]) -> Iterator[Any]:
    """Reports of the tasks, from all processes as they come.

    Raises the exceptions of tasks, and `UserError` if a process ends before its task.
    """
    # Each core has a process.
    fork_server.start(one_thread=True)
    context = fork_server.context()
    arrivals = context.Queue()
    with (
        contextlib.ExitStack() as stack,
        ProcessPoolExecutor(cores(), context, initializer=_start, initargs=(arrivals,)) as pool,
    ):
        # The queues' semaphores would cause a warning behind the words on an interruption.
        stack.callback(undoing(_run_finalizers))
        futures = [pool.submit(_run, work, arguments) for work, arguments in tasks]
        left = len(tasks)
        try:
            while left:
                try:
                    report = arrivals.get(timeout=_POLL_SECONDS)
                    # A trial may meet the effects of the end before its process ends.
                    stay_if_ending()
                except queue.Empty:
                    _raise_from(futures)
                    continue
                if report is None:
                    left -= 1
                else:
                    yield report
        finally:
            # A process may still start after the others have done all tasks. It would fail without the pool.
            pool.shutdown(wait=not left, cancel_futures=True)


def _raise_from(futures: list[Future]) -> None:
    stay_if_ending()
    for future in futures:
        if future.done():
            try:
                future.result()
            except BrokenProcessPool as error:
                problem = "ended without a result: killed, or ended by the case's own code"
                fix = "free memory or correct that code; the same call goes on"
                raise UserError("self-test", "a process", problem, fix) from error


def _start(arrivals: Any) -> None:
    """Prepare a worker process. It has one thread, because each core has a worker."""
    global _reports, _no_call_stacks
    fork_server.own_group()
    import torch

    from parity.runners.tripy.lean_traces import lean_traces

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_the_campaign, daemon=True).start()
    _reports = arrivals
    # Entered for the life of the process. The global keeps the context open.
    _no_call_stacks = lean_traces()
    _no_call_stacks.__enter__()


def _end_with_the_campaign() -> None:
    """End this process with the campaign's, which cannot tell its workers when it is killed."""
    campaign = multiprocessing.parent_process()
    if campaign is not None:
        campaign.join()
        os._exit(1)


def _run(work: Work, arguments: tuple) -> None:
    for report in work(*arguments):
        _reports.put(report)
    _reports.put(None)
