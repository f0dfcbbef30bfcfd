"""Settings of the whole process: threads of numerical libraries, and memory of freed tensors."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import signal
import sys
from collections.abc import Iterator

from threadpoolctl import threadpool_limits

_PR_SET_PDEATHSIG = 1
# Options of glibc's mallopt(3).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
REUSED_BYTES = 2**27
"""Largest block that is reused, in bytes. A larger one goes back to the system when it is freed."""
KEPT_BYTES = 2**28
"""Most free memory that the process keeps, in bytes."""
YOUNG_COLLECTIONS = 100
"""Collections of young objects before one of older objects."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """In the body, numerical libraries of this process take one thread: the other cores are the runners'.

    Threads that wait for one another on busy cores take ten times as long.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1):
            yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def settings_restored() -> Iterator[None]:
    """Runners change settings of PyTorch, and nvtripy changes stderr; behind the body they are as before."""
    import torch

    stderr = sys.stderr
    threads = torch.get_num_threads()
    backends = (torch.backends.cuda.matmul, torch.backends.cudnn)
    allowed = [backend.allow_tf32 for backend in backends]
    try:
        yield
    finally:
        sys.stderr = stderr
        torch.set_num_threads(threads)
        for backend, value in zip(backends, allowed, strict=True):
            backend.allow_tf32 = value


def die_with_parent(parent: int) -> None:
    """Let the system kill this process when its parent, of that process id, ends. Linux alone knows this."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It has ended before.
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """In the body, Python collects no garbage: for work whose objects live to its end, such as imports."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def leave_out_of_collections() -> None:
    """Leave all objects so far, such as imported modules, out of collections of garbage.

    They live to the end of the process. Later objects that are no longer young are mostly in use, such as
    executables: collections look at them rarely.
    """
    gc.freeze()
    gc.set_threshold(gc.get_threshold()[0], YOUNG_COLLECTIONS)


def reuse_freed_memory() -> None:
    """Let glibc keep the memory of freed tensors for the next ones. Other C libraries do not change.

    By default every large tensor is new memory of the system, which clears each page at its first use. The
    clearing takes half the time of operations on the CPU.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(_M_MMAP_THRESHOLD, REUSED_BYTES)
    library.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    library.mallopt(_M_TOP_PAD, KEPT_BYTES // 4)
