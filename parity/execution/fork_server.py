"""The server that runner processes are forked from.

It has only imported modules. A runner process is as clean as a new process, without the time of the imports.
CUDA is not touched before the fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext
from pathlib import Path
from unittest import mock

from parity.base.interruption import own_process
from parity.base.onednn import without_tiles
from parity.base.process import die_with_parent, leave_out_of_collections
from parity.base.supervision import SIGNALS

_MODULES = [
    # First, since the server ends with its parent from this import on.
    __name__,
    "torch",
    "parity.execution.worker",
    "parity.runners.torch.eager",
    "parity.runners.oracle.float64",
    # Decompositions of PyTorch's operations import it, in the first run that records calls.
    "torch.fx.experimental.symbolic_shapes",
]
"""Modules of all runner processes, and of runners that every run has."""
if importlib.util.find_spec("tripy_portable"):
    # TensorRT's own libraries may touch CUDA. The portable runtime does so when it runs.
    _MODULES.append("parity.runners.tripy.runner")
_SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Variables of the server, with which processes that it starts do not look into the present folder."""
_SLEEPS = {"GOMP_SPINCOUNT": "0"}
"""Variables of the server, with which threads of PyTorch sleep where they wait for one another.

By default they wait actively. A timed model has all cores, on one of which this process judges another batch:
then an active wait takes the time of the thread that it waits for."""
_WAITING = {*_SLEEPS, "OMP_WAIT_POLICY"}
"""Variables with which the user decides how threads wait."""
_PARENT = "PARITY_SERVER_OF"
"""Variable with the process id of the server's parent."""
_STARTING = threading.Lock()
"""Held while this process has the server's variables. Of two threads that change and restore them, the one
that ends last would leave the other's there."""


def start(cases: str = "", one_thread: bool = False) -> None:
    """Start the server, unless it runs. Its imports go on while this process works.

    Args:
        cases: The module of the run's cases, which all runners import; empty where it is not known to leave
            CUDA alone.
        one_thread: Whether NumPy has one thread in each process of the server. By default it starts one for
            each core where it first multiplies.
    """
    with _STARTING:
        _ensure_running(cases, one_thread)


def _ensure_running(cases: str, one_thread: bool) -> None:
    modules = [*_MODULES, cases] if cases else _MODULES
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    # The server imports from its environment alone: in another folder it would not see this package.
    paths = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")
    # It looks into the present folder last, as this process does: a user's file hides no library.
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), **_SAFE_PATH, **without_tiles()}
    if threading.current_thread() is threading.main_thread():
        # The system watches the thread that starts the server, and another one may end before the process.
        variables[_PARENT] = str(os.getpid())
    if one_thread:
        # OpenBLAS reads it at its import, and starts its threads before it takes another number.
        variables["OPENBLAS_NUM_THREADS"] = "1"
    if not _WAITING.intersection(os.environ):
        variables.update(_SLEEPS)
    # The server leaves the signals to its parent. The tracker unblocks them where it starts.
    resource_tracker.ensure_running()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        with mock.patch.dict(os.environ, variables), _without_present_folder():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextlib.contextmanager
def _without_present_folder() -> Iterator[None]:
    """In the body, new processes of multiprocessing look into the present folder for no module.

    Python 3.10 does not know PYTHONSAFEPATH, and code behind `-c` would look there first.
    """
    start_process = util.spawnv_passfds

    def spawn(path: object, arguments: list[object], descriptors: Sequence[int]) -> int:
        *flags, code = arguments
        clean = f"import sys; sys.path[:1] == [''] and sys.path.pop(0); {code}"
        return start_process(path, [*flags, clean], descriptors)

    with mock.patch.object(util, "spawnv_passfds", spawn):
        yield


def own_group() -> None:
    """Begin a process of the server's: no interrupt at the terminal reaches it, and it ends with the server.

    It collects garbage, which the server does not. Its group ends with its own processes, such as compilers.
    """
    # First: a collection would look at all imported modules of the server, and copy their memory.
    leave_out_of_collections()
    gc.enable()
    own_process()
    # Python's own way to start processes, as in any program. With the server's way, locks such as tqdm's have
    # names, which remain when the process is killed.
    multiprocessing.set_start_method(None, force=True)
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    die_with_parent(os.getppid())


def environment() -> dict[str, str]:
    """The variables of a runner: this process's, without those that a start of the server adds meanwhile."""
    with _STARTING:
        return {**os.environ, **without_tiles()}


def context() -> ForkServerContext:
    """The context of processes that the server forks."""
    start()
    return multiprocessing.get_context("forkserver")


if _PARENT in os.environ:
    # This is the server. It notices its parent's end between two forks, and not while it imports.
    die_with_parent(int(os.environ.pop(_PARENT)))
    # All that it makes are modules, which live to its end.
    gc.disable()
