"""The threads and processes that this process may still start."""

from __future__ import annotations

import os
import resource
import threading

from parity.base.errors import UserError

_ALWAYS, _BY_CORE, _BY_THREAD = 28, 3, 3
"""Threads and processes of the program: a number of its own, and more by core and by thread of OpenMP.

OpenBLAS, OpenMP, the library of the pictures and the campaigns start one for each core.
`benchmarks/results/hostile_input.md` has the measured peaks.
"""
_STACK = 2**17
"""Bytes of a trial thread's stack. The default takes much of a limit of data (`ulimit -d`)."""


def least() -> int:
    """Threads and processes that the program takes at most besides those that it has at its start."""
    cores = os.cpu_count() or 1
    asked = os.environ.get("OMP_NUM_THREADS", "")
    # Other values, such as "4,2", count as none.
    threads = min(int(asked), cores) if asked.isdecimal() and len(asked) < 10 else cores
    return _ALWAYS + _BY_CORE * cores + _BY_THREAD * max(1, threads)


def require_threads() -> None:
    """Raise `UserError` if the program may not start enough threads.

    The limit is the user's, whose other programs count, or that of the container. A trial finds both. A
    limited address space (`ulimit -v`) has no trial: the system keeps the heaps of the trial's threads, and
    the libraries would lack their space.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return
    needed = least()
    here = _startable(needed)
    if here < needed:
        problem = f"may start {here} more threads and processes, and takes up to {needed}"
        fix = f"raise their limit by {needed - here} (ulimit -u, or --pids-limit of a container)"
        if os.environ.get("OMP_NUM_THREADS") != "1":
            fix += ", or set OMP_NUM_THREADS=1 to take fewer"
        raise UserError("machine", "the program", problem, fix)


def _startable(most: int) -> int:
    """The number of threads, at most `most`, that run side by side."""
    end = threading.Event()
    threads: list[threading.Thread] = []
    before = threading.stack_size(_STACK)
    try:
        for _ in range(most):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        # The system gives no more.
        return len(threads)
    finally:
        threading.stack_size(before)
        end.set()
        for thread in threads:
            thread.join()
    return most
