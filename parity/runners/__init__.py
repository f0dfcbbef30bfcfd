"""Runners: programs that run a case. Each has a process of its own, see `parity.execution.worker`."""

from parity.runners.base import Runner, Unavailable
from parity.runners.registry import RUNNERS, default_runners, make_runner

__all__ = ["RUNNERS", "Runner", "Unavailable", "default_runners", "make_runner"]
