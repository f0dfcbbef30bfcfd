"""Memory of a GPU that the processes of several runners share.

PyTorch keeps freed memory for its process. Here it goes back, and work that found no room is done again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

from parity.base.interruption import raisable
from parity.base.memory import is_allocation_failure

MOST_KEPT = 2**30
"""Freed bytes that a process keeps: below it, taking them anew costs more than they are worth to others."""
PATIENCE = 30.0
"""Longest time in which one call finds no room, in seconds: the calls of other processes end meanwhile."""
_PAUSE = 0.5
"""Seconds between two tries."""

Result = TypeVar("Result")


def give_back() -> None:
    """Give freed memory back to the GPU, if it is more than `MOST_KEPT`."""
    if torch.cuda.is_initialized():
        freed = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if freed > MOST_KEPT:
            torch.cuda.empty_cache()


def with_room(work: Callable[[], Result]) -> Result:
    """Do work that another process may leave no memory of the GPU for: it is tried again for `PATIENCE`.

    Args:
        work: The work, which may be done several times.

    Raises:
        Exception: The work's own error; that of the last try if there was no room.
    """
    latest = time.monotonic() + PATIENCE
    while True:
        try:
            return work()
        except raisable() as error:
            has_room = not (torch.cuda.is_initialized() and is_allocation_failure(error))
            if has_room or time.monotonic() > latest:
                raise
        # Here the error, whose frames hold the work's tensors, is gone.
        torch.cuda.empty_cache()
        time.sleep(_PAUSE)
