"""One run of a runner as a Chrome or Perfetto trace, in which every module is a range named by its path."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch.profiler import ProfilerActivity, record_function

from parity.capture.captures import Capture, ModuleCall

WHOLE_MODEL = "whole model"


class TracedRunner(Protocol):
    """A loaded runner, see `parity.runners.base.Runner`."""

    taps_modules: bool
    ranges_modules: bool

    def time(self, arrays: Mapping[str, np.ndarray], repeats: int) -> list[float]:
        """Run the whole model."""

    def module_ranges(self) -> AbstractContextManager[None]:
        """Show each module that runs in the body as a range."""

    def can_run(self, call: ModuleCall) -> bool:
        """Whether `time_call` can run a call."""

    def time_call(self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], repeats: int) -> list[float]:
        """Run one module alone."""


def profile(runner: TracedRunner, arrays: Mapping[str, np.ndarray], recorded: Capture, path: Path) -> None:
    """Write a trace of the whole model, which is the range `whole model`.

    Modules that run one by one are ranges inside it. Modules of one graph run once more alone after it, each
    as its own range. Modules that are fused have no range.

    Args:
        runner: A runner that has run the model, and the calls alone if it can.
        arrays: The inputs.
        recorded: The reference's capture with its calls.
        path: The file.
    """
    runner.time(arrays, 1)
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        with record_function(WHOLE_MODEL), runner.module_ranges():
            runner.time(arrays, 1)
        if runner.taps_modules and not runner.ranges_modules:
            for call in filter(runner.can_run, recorded.calls):
                with record_function(call.tap):
                    runner.time_call(call, recorded.call_inputs, 1)
    profiler.export_chrome_trace(str(path))
