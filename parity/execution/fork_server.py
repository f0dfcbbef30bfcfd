"""The server that runner processes are forked from.

It has only imported modules. A runner process is as clean as a new process, without the time of the imports.
CUDA is not touched before the fork.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from unittest import mock

_MODULES = [
    "torch",
    "parity.execution.worker",
    "parity.runners.torch.eager",
    "parity.runners.oracle.float64",
    # Decompositions of PyTorch's operations import it, in the first run that records calls.
    "torch.fx.experimental.symbolic_shapes",
]
"""Modules of all runner processes, and of runners that every run has."""


def start() -> None:
    """Start the server, unless it runs. Its imports go on while this process works."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(_MODULES)
    # The server imports from its environment alone: in another folder it would not see this package.
    paths = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths))):
        forkserver.ensure_running()


def context() -> ForkServerContext:
    """The context of processes that the server forks."""
    start()
    return multiprocessing.get_context("forkserver")
