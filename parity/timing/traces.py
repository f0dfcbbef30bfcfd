"""One run of a runner as a Chrome or Perfetto trace, in which every module is a range named by its path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch.profiler import ProfilerActivity, record_function

from parity.capture.captures import Capture
from parity.runners.base import Runner

WHOLE_MODEL = "whole model"


def profile(runner: Runner, arrays: Mapping[str, np.ndarray], recorded: Capture, path: Path) -> None:
    """Write a trace of the whole model, which is the range `whole model`.

    Modules are ranges inside it where they run one by one. Where they are parts of one graph, each runs once
    more by itself, as the executable that it is judged as, behind the whole model; where they are fused and
    cannot be told apart, there are none.

    Args:
        runner: It has run the model, and the calls by themselves if it can.
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
