"""The commands of a runner's process, one method each. Tensors travel as files.

`parity.execution.worker.RunnerProcess.request` calls a method here, in the runner's process. Only the loaded
model, the outputs of the last timed run, and on a GPU the calls to be timed stay from one command to the
next. Files are cached.
"""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from parity.base.interruption import raisable
from parity.base.memory import is_allocation_failure
from parity.capture.captures import Capture, ModuleCall
from parity.capture.rows import RowDifferences, is_separable, run_row_trials
from parity.capture.slices import (
    MemoryBudget,
    Part,
    call_bytes,
    largest_tap_bytes,
    moved_bytes,
    parts,
    tapped_bytes,
    unless_leaking,
    working_bytes,
)
from parity.capture.spool import CannotWrite
from parity.capture.store import save_capture
from parity.execution import gpu_memory
from parity.execution.errors import error_text
from parity.execution.timing_commands import TimingCommands
from parity.inputs.weights import load_export
from parity.runners.base import (
    Appends,
    BuildsEngines,
    MeasuresCoverage,
    RecordsCalls,
    TapsAtOnce,
    TapsModules,
)
from parity.runners.magnitudes import MOST_BYTES, Magnitude, magnitudes
from parity.runners.oracle.float64 import Float64Runner

_OF_FLOAT64 = 2
"""Size of a float64 number in units of a float32 one."""
_JUDGED_TENSORS = 6
"""Tensors of a tap in float64 that a verdict holds at once: three sides and their differences."""


@dataclass(frozen=True)
class WorkingBytes:
    """Memory that parts of the work take, in bytes.

    Attributes:
        forward, appending: The whole batch in the reference's precision, in a forward and in an append.
        row: One row of a tapped run in float64.
        judged: The tensors of a verdict on the largest tap.
    """

    forward: int
    appending: int
    row: int
    judged: int

    @property
    def largest(self) -> int:
        """The largest memory that no slice makes smaller."""
        return max(vars(self).values())


class Commands(TimingCommands):
    """The commands of one runner. Those that start, load and time it are its parents'."""

    def build(self, inputs: Path, folder: Path) -> list[dict[str, Any]]:
        """Build engines into a folder. Returns the fields of a `BuildRecord` for each."""
        return self._able(BuildsEngines).build(self._inputs(inputs), folder)

    def place_oracle(self, inputs: Path) -> bool:
        """Put the oracle where it runs on a batch. Returns whether that is the GPU."""
        return self._able(Float64Runner).place(self._inputs(inputs))

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
        arrays = self._inputs(inputs)
        rows = self._model.batch_size_of(arrays) if is_separable(self._model, arrays) else 1
        return WorkingBytes(
            forward=forward,
            appending=forward + cache,
            row=_OF_FLOAT64 * tapped_bytes(recorded, holds_taps=True) // rows,
            judged=_JUDGED_TENSORS * _OF_FLOAT64 * largest_tap_bytes(recorded),
        )

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
                taps = unless_leaking(capture, taps, self._capture(clean).tensors, self._model, part)
                destination = replace(capture, tensors=taps)
            self._able(TapsModules).run_tapped(part.arrays, destination, whole=part.rows is None)
        save_capture(capture, stem)

    def run_row_trials(
        self, inputs: Path, captured: Path, budget: MemoryBudget, calls: Path | None
    ) -> list[RowDifferences]:
        """Compare rows of the batch, or of its first part, in other batches and in a second run.

        Args:
            inputs: The batch.
            captured: Stem of this runner's capture of the batch; of a runner without taps, the outputs.
            budget: Memory that a run may take.
            calls: As of `run_tapped`.
        """
        part, taps = self._parts(inputs, calls, budget)[0], self._capture(captured).tensors
        whole = taps if part.rows is None else part.inputs(taps)
        return run_row_trials(self._model, part.arrays, whole, self._run_into)

    def _run_into(self, arrays: Mapping[str, np.ndarray], capture: Capture) -> None:
        """Put the taps of a run into a capture, or the outputs of a runner without taps."""
        if isinstance(self._runner, TapsModules):
            # Arguments are not compared.
            self._runner.run_tapped(arrays, capture, whole=False)
        else:
            capture.tensors.update(self._runner.run(arrays))

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
            except raisable() as error:
                if is_allocation_failure(error):
                    raise
                traceback.print_exc(file=self.log)
                problems[call.tap] = error_text(error)
                for name in set(capture.tensors) - before:
                    del capture.tensors[name]
        save_capture(capture, stem)
        return problems

    def run_magnitudes(self, inputs: Path, calls: Path) -> list[Magnitude]:
        """The errors of the first call of each of a port's modules at other magnitudes."""
        recorded, port = self._capture(calls), self._able(TapsModules)
        firsts: dict[str, ModuleCall] = {}
        for call in recorded.calls:
            is_small = call_bytes(recorded, call) <= MOST_BYTES
            if port.can_run(call) and not call.appends and is_small:
                firsts.setdefault(call.path, call)
        assert self._loaded is not None, "load comes first"
        _, precision, weights = self._loaded
        of = (self._model, precision, load_export(weights), recorded)
        return list(magnitudes(port, *of, firsts.values(), self._inputs(inputs)))

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
            run = partial(self._able(TapsModules).run_call, call, tensors, part.arrays, part.rows is None)
            part.into(capture.tensors, recorded).update(gpu_memory.with_room(run))
        gpu_memory.give_back()

    def _tapped_bytes(self, recorded: Capture) -> int:
        runner = self._runner
        return tapped_bytes(recorded, isinstance(runner, TapsAtOnce)) * runner.widening()

    def run_incremental(self, inputs: Path, stem: Path) -> None:
        """Save the last step of the incremental forward; nothing if the case has none."""
        outputs = self._able(Appends).run_incremental(self._inputs(inputs))
        if outputs:
            save_capture(Capture(tensors=outputs), stem)

    def run_appending(self, inputs: Path, stem: Path) -> None:
        """Save the calls of the incremental forward; nothing if the runner has none to compare."""
        capture = self._able(Appends).run_appending(self._inputs(inputs))
        if capture.arguments:
            save_capture(capture, stem)

    def coverage(self, inputs: Path, calls: Path, path: Path) -> None:
        """Save what the batch asks of the port, and no batch before it."""
        recorded = self._capture(calls)
        self._able(MeasuresCoverage).coverage(self._inputs(inputs), recorded).write(path)

    def call(self, target: str, *arguments: Any) -> Any:
        """Call a function by its import path, `package.module:function`, in this process."""
        module, _, name = target.partition(":")
        return getattr(importlib.import_module(module), name)(*arguments)
