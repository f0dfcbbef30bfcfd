"""The commands that time a runner, and write its traces."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from parity.capture.captures import Capture
from parity.capture.store import save_capture
from parity.execution.loaded import LoadedRunner
from parity.runners.base import (
    RangesModules,
    ReplaysGraphs,
    TapsModules,
)
from parity.timing.measure import Replayed, TimedCall
from parity.timing.rounds import TimedRuns
from parity.timing.traces import profile


class TimingCommands(LoadedRunner):
    """The commands that time a loaded model, its graphs and single calls."""

    def time(self, inputs: Path, repeats: int) -> TimedRuns:
        """Time runs of the whole model, with the peak of GPU memory where PyTorch knows it."""
        counts_memory = torch.cuda.is_available() and self._runner.allocates_by_torch()
        if counts_memory:
            torch.cuda.reset_peak_memory_stats()
        timed = self._runner.time(self._inputs(inputs), repeats)
        self._timed = timed.result
        return TimedRuns(timed.seconds, torch.cuda.max_memory_allocated() if counts_memory else None)

    def save_timed(self, stem: Path) -> None:
        """Save the outputs of the last timed run of the whole model; nothing if the runner drops them."""
        if self._timed:
            save_capture(Capture(tensors=self._timed), stem)

    def prepare_timing(self, inputs: Path, calls: Path) -> None:
        """Capture CUDA graphs of the model and of calls, beside other users; nothing without a GPU."""
        if not torch.cuda.is_available():
            return
        self.time_replays(inputs, 0)
        if isinstance(self._runner, TapsModules):
            for _, timed in self._timed_calls(inputs, calls):
                timed.time(1)
                if timed.replays is not None:
                    timed.replays.time(0)

    def time_calls(self, inputs: Path, calls: Path, repeats: int) -> dict[str, list[float]]:
        """Time each recorded call alone, by tap."""
        return {tap: timed.time(repeats) for tap, timed in self._timed_calls(inputs, calls)}

    def _timed_calls(self, inputs: Path, calls: Path) -> Iterator[tuple[str, TimedCall]]:
        """The recorded calls with their arguments in place, by tap.

        On a GPU they stay in place until another model is loaded. The host has no memory for all of them.
        """
        runner, recorded, arrays = self._able(TapsModules), self._capture(calls), self._inputs(inputs)
        for call in filter(runner.can_run, recorded.calls):
            timed = self._in_place.get((calls, call.tap))
            if timed is None:
                timed = runner.timed_call(call, recorded.call_inputs, arrays)
                if torch.cuda.is_available():
                    self._in_place[calls, call.tap] = timed
            yield call.tap, timed

    def time_replays(self, inputs: Path, repeats: int) -> Replayed:
        """Time replays of the whole model's CUDA graph; none and no reason without that ability."""
        runner = self._runner
        has_graph = isinstance(runner, ReplaysGraphs)
        return runner.time_replays(self._inputs(inputs), repeats) if has_graph else Replayed([])

    def time_call_replays(self, inputs: Path, calls: Path, repeats: int) -> dict[str, Replayed]:
        """Time replays of the CUDA graph of each recorded call that has one, by tap."""
        return {
            tap: timed.replays.time(repeats)
            for tap, timed in self._timed_calls(inputs, calls)
            if timed.replays is not None
        }

    def profile(self, inputs: Path, calls: Path, path: Path) -> None:
        """Write a trace of one run, with a range for each module.

        Modules that run one by one are ranges inside the model. Modules of one graph run once more alone.
        Modules that are fused have no range.
        """
        runner, recorded, arrays = self._runner, self._capture(calls), self._inputs(inputs)
        ranges = runner.module_ranges() if isinstance(runner, RangesModules) else contextlib.nullcontext()
        alone: dict[str, Callable[[], Any]] = {}
        if isinstance(runner, TapsModules) and not isinstance(runner, RangesModules):
            run_alone = lambda call: runner.timed_call(call, recorded.call_inputs, arrays).time(1)  # noqa: E731
            for call in filter(runner.can_run, recorded.calls):
                alone[call.tap] = functools.partial(run_alone, call)
        profile(lambda: runner.time(arrays, 1), ranges, alone, path)
