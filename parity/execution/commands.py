"""The commands of a runner's process, one method each. Tensors travel as files.

`parity.execution.worker.RunnerProcess.request` calls a method here, in the runner's process. Only the loaded
model, the outputs of the last timed run, and on a GPU the calls to be timed stay from one command to the
next. Files are cached.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO, TypeVar

import numpy as np
import torch

from parity.base.precision import Precision
from parity.capture.captures import Capture, ModuleCall
from parity.capture.rows import RowDifferences, run_row_trials
from parity.capture.slices import (
    MemoryBudget,
    Part,
    call_bytes,
    moved_bytes,
    parts,
    tapped_bytes,
    unless_leaking,
    working_bytes,
)
from parity.capture.sources import sources
from parity.capture.spool import CannotWrite
from parity.capture.store import open_capture, save_capture
from parity.case import Case, CaseReference, load_case
from parity.inputs.arrays import load as load_arrays
from parity.inputs.weights import load_export
from parity.runners import Runner, make_runner
from parity.runners.base import (
    Appends,
    BuildsEngines,
    MeasuresCoverage,
    RangesModules,
    RecordsCalls,
    ReplaysGraphs,
    TapsAtOnce,
    TapsModules,
)
from parity.timing.measure import Replayed, TimedCall
from parity.timing.rounds import TimedRuns
from parity.timing.traces import profile

_OF_THE_COMPILER = re.compile(r"\(%\w+\) error: (.*)")
_OF_THE_SOURCE = re.compile(r"-->|\d*\s*\|")
Ability = TypeVar("Ability", bound=Runner)


@dataclass(frozen=True)
class Abilities:
    """Abilities of a runner.

    Attributes:
        label: Full name in reports.
        taps_modules: Whether it runs modules one by one.
        appends: Whether it has an incremental forward.
        builds: Whether its engines are results of their own.
        measures_coverage: Whether it measures what inputs ask of a port.
    """

    label: str
    taps_modules: bool
    appends: bool
    builds: bool
    measures_coverage: bool


@dataclass(frozen=True)
class WorkingBytes:
    """Memory that the whole batch takes in the reference's precision, in bytes."""

    forward: int
    appending: int


class Commands:
    """The commands of one runner.

    Args:
        name: A name in `parity.runners.RUNNERS`, or the oracle's.
        log: Receives the tracebacks of errors; None for the stderr of this process.
    """

    def __init__(self, name: str, log: TextIO | None = None) -> None:
        self._name = name
        self.log = log
        self._started: Runner | None = None
        self._case: Case | None = None
        self._loaded: tuple[Case | CaseReference, Precision, Path] | None = None
        self._arrays: dict[Path, Mapping[str, np.ndarray]] = {}
        self._captures: dict[Path, Capture] = {}
        self._timed: dict[str, torch.Tensor] = {}
        self._in_place: dict[tuple[Path, str], TimedCall] = {}

    @property
    def _runner(self) -> Runner:
        assert self._started is not None, "start comes first"
        return self._started

    def _able(self, ability: type[Ability]) -> Ability:
        """The runner, which has an ability that the parent knows of."""
        runner = self._runner
        assert isinstance(runner, ability), f"{self._name} has no {ability.__name__}"
        return runner

    @property
    def _model(self) -> Case:
        assert self._case is not None, "load comes first"
        return self._case

    def close(self) -> None:
        """Close the log. No command follows."""
        if self.log is not None:
            self.log.close()

    def start(self, threads: int) -> Abilities:
        """Create the runner, if it does not exist, and give it so many threads."""
        torch.set_num_threads(threads)
        if self._started is None:
            self._started = make_runner(self._name)
        runner = self._started
        return Abilities(
            runner.label(),
            isinstance(runner, TapsModules),
            isinstance(runner, Appends),
            isinstance(runner, BuildsEngines),
            isinstance(runner, MeasuresCoverage),
        )

    def load(self, source: Case | CaseReference, precision: Precision, weights: Path) -> dict[str, str]:
        """Load a live case, or one of a reference, with exported weights, unless they are loaded.

        Returns the places of its modules in the source, see `RunnerRecord`.
        """
        if self._loaded == (source, precision, weights):
            return self._sources()
        self._captures.clear()
        self._in_place.clear()
        self._loaded = None
        case = source if isinstance(source, Case) else load_case(source)
        self._runner.load(case, precision, load_export(weights))
        self._case = case
        self._loaded = source, precision, weights
        return self._sources()

    def _sources(self) -> dict[str, str]:
        runner = self._runner
        return sources(runner.modules(), self._model.entry) if isinstance(runner, TapsModules) else {}

    def build(self, inputs: Path, folder: Path) -> list[dict[str, Any]]:
        """Build engines into a folder. Returns the fields of a `BuildRecord` for each."""
        return self._able(BuildsEngines).build(self._inputs(inputs), folder)

    def run(self, inputs: Path, stem: Path) -> float:
        """Save the outputs of the untapped model. Returns the seconds of the run."""
        arrays = self._inputs(inputs)
        began = time.monotonic()
        outputs = self._runner.run(arrays)
        seconds = time.monotonic() - began
        save_capture(Capture(tensors=outputs), stem)
        return seconds

    def record(self, inputs: Path, stem: Path, budget: MemoryBudget) -> WorkingBytes:
        """Save all taps with the calls, from a run of the whole batch. Returns the memory that it takes."""
        capture = Capture.spooled(stem, budget.large_bytes)
        self._able(RecordsCalls).record(self._inputs(inputs), capture)
        save_capture(capture, stem)
        recorded = self._capture(stem)
        forward = working_bytes(recorded)
        cache = max((moved_bytes(recorded, call) for call in recorded.calls if call.appends), default=0)
        return WorkingBytes(forward, forward + cache)

    def run_tapped(
        self, inputs: Path, stem: Path, budget: MemoryBudget, calls: Path | None, clean: Path | None = None
    ) -> None:
        """Save all taps.

        Args:
            inputs: The batch.
            stem: Stem of the capture.
            budget: Memory that a run may take.
            calls: Stem of the reference's capture with its calls, for the batch's memory; None to run the
                batch as a whole.
            clean: Stem of this runner's capture of the same inputs without garbage in the padding.
        """
        capture = Capture.spooled(stem, budget.large_bytes)
        for part in self._parts(inputs, calls, budget):
            taps = part.into(capture.tensors, self._capture(calls)) if calls else capture.tensors
            destination = replace(capture, tensors=taps)
            if clean is not None:
                taps = unless_leaking(taps, self._capture(clean).tensors, self._model, part)
                # Arguments are compared without garbage.
                destination = Capture(tensors=taps)
            self._able(TapsModules).run_tapped(part.arrays, destination, whole=part.rows is None)
        save_capture(capture, stem)

    def run_row_trials(
        self, inputs: Path, tapped: Path, budget: MemoryBudget, calls: Path | None
    ) -> list[RowDifferences]:
        """Compare rows of the batch, or of its first part, in other batches and in a second run.

        Args:
            inputs: The batch.
            tapped: Stem of this runner's capture of the batch.
            budget: Memory that a run may take.
            calls: As of `run_tapped`.
        """
        part, taps = self._parts(inputs, calls, budget)[0], self._capture(tapped).tensors
        whole = taps if part.rows is None else part.inputs(taps)
        return run_row_trials(self._model, part.arrays, whole, self._able(TapsModules).run_tapped)

    def _parts(self, inputs: Path, calls: Path | None, budget: MemoryBudget) -> list[Part]:
        arrays = self._inputs(inputs)
        if calls is None:
            return [Part(arrays, None, 0)]
        needed = self._tapped_bytes(self._capture(calls))
        return parts(self._model, arrays, needed, budget.slice_bytes)

    def run_isolated(self, inputs: Path, calls: Path, stem: Path, budget: MemoryBudget) -> dict[str, str]:
        """Save the results of every recorded call alone. Returns the errors of calls that raised, by tap."""
        recorded, arrays = self._capture(calls), self._inputs(inputs)
        capture, problems = Capture.spooled(stem, budget.large_bytes), {}
        for call in filter(self._able(TapsModules).can_run, recorded.calls):
            before = set(capture.tensors)
            try:
                self._run_call(call, arrays, recorded, capture, budget)
            except (MemoryError, CannotWrite):
                raise
            except Exception as error:
                if is_allocation_failure(error):
                    raise
                traceback.print_exc(file=self.log)
                problems[call.tap] = f"{type(error).__name__}: {first_line(error)}"
                for name in set(capture.tensors) - before:
                    del capture.tensors[name]
        save_capture(capture, stem)
        return problems

    def _run_call(
        self,
        call: ModuleCall,
        arrays: Mapping[str, np.ndarray],
        recorded: Capture,
        capture: Capture,
        budget: MemoryBudget,
    ) -> None:
        needed = call_bytes(recorded, call) * self._runner.widening()
        if needed > budget.slice_bytes:
            # At least as many parts as of the model, so that tensors that are equal in both are equal files.
            needed = max(needed, self._tapped_bytes(recorded))
        for part in parts(self._model, arrays, needed, budget.slice_bytes):
            tensors = part.inputs(recorded.call_inputs)
            results = self._able(TapsModules).run_call(call, tensors, part.arrays, whole=part.rows is None)
            part.into(capture.tensors, recorded).update(results)

    def _tapped_bytes(self, recorded: Capture) -> int:
        runner = self._runner
        return tapped_bytes(recorded, isinstance(runner, TapsAtOnce)) * runner.widening()

    def run_incremental(self, inputs: Path, stem: Path) -> None:
        """Save the last step of the incremental forward; nothing if the case has none."""
        outputs = self._able(Appends).run_incremental(self._inputs(inputs))
        if outputs:
            save_capture(Capture(tensors=outputs), stem)

    def coverage(self, inputs: Path, calls: Path, path: Path) -> None:
        """Save what the batch, and those before it, ask of the port."""
        recorded = self._capture(calls)
        self._able(MeasuresCoverage).coverage(self._inputs(inputs), recorded).write(path)

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

    def call(self, target: str, *arguments: Any) -> Any:
        """Call a function by its import path, `package.module:function`, in this process."""
        module, _, name = target.partition(":")
        return getattr(importlib.import_module(module), name)(*arguments)

    def _inputs(self, path: Path) -> Mapping[str, np.ndarray]:
        if path not in self._arrays:
            self._arrays = {path: load_arrays(path).arrays}
        return self._arrays[path]

    def _capture(self, stem: Path) -> Capture:
        if stem not in self._captures:
            # The reference's and the runner's own are in use together; those of earlier batches are not.
            self._captures = dict(list(self._captures.items())[-1:]) | {stem: open_capture(stem)}
        return self._captures[stem]


def first_line(error: BaseException) -> str:
    """The first line of an error's message; of nvtripy's the compiler's sentence without the source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = (match[1] for line in lines if (match := _OF_THE_COMPILER.match(line)))
    plain = (line for line in lines if not _OF_THE_SOURCE.match(line))
    return next(told, None) or next(plain, None) or "no message"


def is_allocation_failure(error: Exception) -> bool:
    """Whether an error says that memory could not be allocated."""
    text = str(error)
    return (
        isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in text or "out of memory" in text
    )
