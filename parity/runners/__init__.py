"""Runners: programs that run a case. Each has a process of its own, see `parity.execution.worker`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parity.runners.registry import RUNNERS, default_runners, make_runner

if TYPE_CHECKING:
    from parity.runners.base import Runner, Unavailable

__all__ = ["RUNNERS", "TIMEOUT", "Runner", "Unavailable", "default_runners", "make_runner"]

TIMEOUT = 600.0
"""Time limit of one step of one runner in a process of its own, in seconds, where none is asked for."""


def __getattr__(name: str) -> Any:
    # They need PyTorch. Shell completion needs the names of the runners alone.
    if name in ("Runner", "Unavailable"):
        from parity.runners import base

        return getattr(base, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
