"""A process for each core, each telling what it finds as it finds it."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

Work = Callable[..., Iterator[Any]]
"""Yields reports; a function of a module, its arguments and its reports picklable."""

_POLL_SECONDS = 1.0
_reports: Any = None
_no_call_stacks: AbstractContextManager | None = None


def cores() -> int:
    """How many processes work side by side: the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def reports(tasks: Sequence[tuple[Work, tuple]]) -> Iterator[Any]:
    """What the tasks yield, from all processes as it comes. Raises what a task raises."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    found = context.Queue()
    with ProcessPoolExecutor(cores(), context, initializer=_start, initargs=(found,)) as pool:
        futures = [pool.submit(_run, work, arguments) for work, arguments in tasks]
        left = len(tasks)
        try:
            while left:
                try:
                    report = found.get(timeout=_POLL_SECONDS)
                except queue.Empty:
                    _raise_from(futures)
                    continue
                if report is None:
                    left -= 1
                else:
                    yield report
        finally:
            # Where others have done it all, a process may still be starting, and fails if it is left alone.
            pool.shutdown(wait=not left, cancel_futures=True)


def _raise_from(futures: list[Future]) -> None:
    for future in futures:
        if future.done():
            future.result()


def _start(found: Any) -> None:
    """A worker, with one thread, since there is a worker for each core."""
    global _reports, _no_call_stacks
    import torch

    from parity.runners.tripy.call_stacks import no_call_stacks

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_the_campaign, daemon=True).start()
    _reports = found
    # Entered for the life of the process, and kept: what nobody holds is closed.
    _no_call_stacks = no_call_stacks()
    _no_call_stacks.__enter__()


def _end_with_the_campaign() -> None:
    """A campaign that is killed tells its processes nothing, and nobody keeps what they find from then on."""
    campaign = multiprocessing.parent_process()
    if campaign is not None:
        campaign.join()
        os._exit(1)


def _run(work: Work, arguments: tuple) -> None:
    for report in work(*arguments):
        _reports.put(report)
    _reports.put(None)
