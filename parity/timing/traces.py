"""Chrome or Perfetto traces of one run, in which every module is a range named by its path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

WHOLE_MODEL = "whole model"


def profile(
    run: Callable[[], Any],
    ranges: AbstractContextManager[None],
    alone: Mapping[str, Callable[[], Any]],
    path: Path,
) -> None:
    """Write a trace of the whole model, which is the range `whole model`, and of modules alone after it.

    Args:
        run: Runs the whole model once, inputs already in place.
        ranges: A context in which the modules of the whole model are ranges; it is entered once.
        alone: Runs of modules alone, by the names of their ranges.
        path: The file.
    """
    run()
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        with record_function(WHOLE_MODEL), ranges:
            run()
        for name, run_module in alone.items():
            with record_function(name):
                run_module()
    profiler.export_chrome_trace(str(path))
