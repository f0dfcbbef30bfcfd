"""Runners: whatever can run a case. Each lives in a process of its own (see `parity.worker`)."""

from __future__ import annotations

from parity.runners.base import Runner, Unavailable

RUNNERS = ("torch", "torch_jagged", "torch_compile", "oracle", "tripy")
"""Every runner's name. `torch` is the reference and `oracle` its float64 double: both always run."""


def make_runner(name: str) -> Runner:
    """Create a runner by name, importing only what that runner needs."""
    if name == "tripy":
        from parity.runners.tripy_runner import TripyRunner

        return TripyRunner()
    from parity.runners import torch_runners

    return {
        "torch": torch_runners.TorchRunner,
        "torch_jagged": torch_runners.TorchJaggedRunner,
        "torch_compile": torch_runners.TorchCompileRunner,
        "oracle": torch_runners.OracleRunner,
    }[name]()


__all__ = ["RUNNERS", "Runner", "Unavailable", "make_runner"]
