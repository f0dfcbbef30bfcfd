"""What a runner's process does for its parent (`parity.execution.worker`): one method a command, files in and
out."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity.capture.captures import Capture, ModuleCall
from parity.capture.slices import (
    Limits,
    Part,
    call_bytes,
    moved_bytes,
    parts,
    tapped_bytes,
    unless_leaking,
    working_bytes,
)
from parity.capture.spool import CannotWrite
from parity.capture.store import open_capture, save_capture
from parity.timing.measure import Replayed


class Commands:
    """What the parent may ask for; each method runs in the child and returns something small."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._runner: Any = None
        self._loaded: tuple | None = None
        self._limits = Limits()
        self._case: Any = None
        self._arrays: dict[str, Mapping] = {}
        self._captures: dict[str, Capture] = {}

    def start(self, threads: int, limits: Limits | None = None) -> dict[str, Any]:
        """Create the runner. Returns its label and what it can do."""
        import torch

        from parity.runners import make_runner

        torch.set_num_threads(threads)
        self._limits = limits or self._limits
        if self._runner is None:
            self._runner = make_runner(self._name)
        return {
            "label": self._runner.label(),
            "taps_modules": self._runner.taps_modules,
            "appends": self._runner.appends,
            "builds": self._runner.builds,
        }

    def load(self, reference: str, precision: str, weights: str) -> None:
        """Load a case in a precision with exported weights, unless they are loaded already."""
        from parity.base.precision import PRECISIONS
        from parity.case import CaseReference
        from parity.inputs.weights import load_export

        loaded = (reference, precision, weights)
        if self._loaded == loaded:
            return
        self._captures.clear()
        case = CaseReference.model_validate_json(reference).load()
        self._loaded = None
        self._runner.load(case, PRECISIONS[precision], load_export(Path(weights)))
        self._case = case
        self._loaded = loaded

    def build(self, inputs: str, folder: str) -> list[dict]:
        """What is known of the engines that were built, which are in `folder`."""
        return self._runner.build(self._inputs(inputs), Path(folder))

    def run(self, inputs: str, stem: str) -> float:
        """Untapped outputs to `stem`. Returns the seconds that they took."""
        arrays = self._inputs(inputs)
        began = time.monotonic()
        outputs = self._runner.run(arrays)
        seconds = time.monotonic() - began
        save_capture(Capture(tensors=outputs), Path(stem))
        return seconds

    def run_tapped(
        self, inputs: str, stem: str, record_calls: bool, calls: str | None = None, clean: str | None = None
    ) -> None:
        """Tapped outputs, and the calls if asked for, to `stem`.

        Args:
            inputs: The batch's.
            stem: Of the capture.
            record_calls: Whether to record the calls, for which the batch is run as a whole.
            calls: Stem of the reference's capture with its calls, which tells what fits at once.
            clean: Stem of this runner's capture on the same inputs without garbage in the padding.
        """
        capture = Capture.spooled(Path(stem), self._limits.large)
        for part in self._parts(inputs, calls):
            taps = part.into(capture.tensors, self._calls(calls)) if calls else capture.tensors
            if clean is not None:
                taps = unless_leaking(taps, self._calls(clean).tensors, self._case, part)
            self._runner.in_slices = part.rows is not None
            self._runner.run_tapped(part.arrays, record_calls, replace(capture, tensors=taps))
        save_capture(capture, Path(stem))

    def _parts(self, inputs: str, calls: str | None) -> list[Part]:
        arrays = self._inputs(inputs)
        if calls is None:
            return [Part(arrays, None, 0)]
        needed = tapped_bytes(self._calls(calls), self._runner.holds_taps) * self._runner.widening
        return parts(self._case, arrays, needed, self._limits.slice_bytes)

    def run_isolated(self, inputs: str, calls: str, stem: str) -> dict[str, str]:
        """Every recorded call alone, results to `stem`. Returns the calls that raised, with the reason."""
        recorded = self._calls(calls)
        capture, problems = Capture.spooled(Path(stem), self._limits.large), {}
        for call in filter(self._runner.can_run, recorded.calls):
            before = set(capture.tensors)
            try:
                self._run_call(call, self._inputs(inputs), recorded, capture)
            except (MemoryError, CannotWrite):
                raise
            except Exception as error:
                if is_allocation_failure(error):
                    raise
                traceback.print_exc()
                problems[call.tap] = f"{type(error).__name__}: {first_line(error)}"
                for name in set(capture.tensors) - before:
                    del capture.tensors[name]
        save_capture(capture, Path(stem))
        return problems

    def _run_call(self, call: ModuleCall, arrays: Mapping, recorded: Capture, capture: Capture) -> None:
        needed = call_bytes(recorded, call) * self._runner.widening
        if needed > self._limits.slice_bytes:
            # Cut as the model is at least, so that tensors that are equal in both are equal files.
            needed = max(needed, tapped_bytes(recorded, self._runner.holds_taps) * self._runner.widening)
        for part in parts(self._case, arrays, needed, self._limits.slice_bytes):
            self._runner.in_slices = part.rows is not None
            results = self._runner.run_call(call, part.inputs(recorded.call_inputs), part.arrays)
            part.into(capture.tensors, recorded).update(results)

    def working_bytes(self, calls: str) -> tuple[int, int]:
        """What a forward and an incremental forward of the whole batch hold at once."""
        recorded = self._calls(calls)
        forward = working_bytes(recorded)
        return forward, forward + max(
            (moved_bytes(recorded, call) for call in recorded.calls if call.appends), default=0
        )

    def run_incremental(self, inputs: str, stem: str) -> None:
        """The last step of the incremental forward to `stem`; nothing where the case has none."""
        outputs = self._runner.run_incremental(self._inputs(inputs))
        if outputs:
            save_capture(Capture(tensors=outputs), Path(stem))

    def time(self, inputs: str, repeats: int) -> list[float]:
        """Seconds of whole-model runs."""
        return self._runner.time(self._inputs(inputs), repeats)

    def time_calls(self, calls: str, repeats: int) -> dict[str, list[float]]:
        """Seconds of each recorded call, by tap."""
        recorded = self._calls(calls)
        return {
            call.tap: self._runner.time_call(call, recorded.call_inputs, repeats)
            for call in filter(self._runner.can_run, recorded.calls)
        }

    def save_timed(self, stem: str) -> None:
        """Outputs of the last timed whole-model run to `stem`; nothing where they are not kept."""
        outputs = self._runner.timed_outputs()
        if outputs:
            save_capture(Capture(tensors=outputs), Path(stem))

    def time_replays(self, inputs: str, repeats: int) -> Replayed:
        """Whole-model runs as replays of a CUDA graph."""
        return self._runner.time_replays(self._inputs(inputs), repeats)

    def time_call_replays(self, calls: str, repeats: int) -> dict[str, Replayed]:
        """Each recorded call as replays, by tap."""
        recorded = self._calls(calls)
        return {
            call.tap: self._runner.time_call_replays(call, recorded.call_inputs, repeats)
            for call in filter(self._runner.can_run, recorded.calls)
        }

    def watch_memory(self) -> None:
        """Begin to look for the peak of GPU memory."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def peak_memory(self) -> int | None:
        """Bytes of GPU memory that PyTorch held at most since `watch_memory`; None where it doesn't know."""
        import torch

        known = torch.cuda.is_available() and self._runner.in_torchs_memory
        return torch.cuda.max_memory_allocated() if known else None

    def profile(self, inputs: str, calls: str, path: str) -> None:
        """A trace of one run, with a range for each module, to `path`."""
        from parity.timing.traces import profile

        profile(self._runner, self._inputs(inputs), self._calls(calls), Path(path))

    def write_polygraphy(self, reference: str, precision: str, weights: str, folder: str) -> None:
        """The reference as ONNX, inputs and outputs for Polygraphy, into a case's folder of a saved run."""
        from parity.base.precision import PRECISIONS
        from parity.case import CaseReference
        from parity.execution.folder import CaseFolder
        from parity.inputs.weights import load_export
        from parity.report import polygraphy as polygraphy_files

        case = CaseReference.model_validate_json(reference).load()
        case_folder = CaseFolder(Path(folder))
        polygraphy_files.write(case, PRECISIONS[precision], load_export(Path(weights)), case_folder)

    def _inputs(self, path: str) -> Mapping:
        from parity.inputs.arrays import load

        if path not in self._arrays:
            self._arrays = {path: load(Path(path)).arrays}
        return self._arrays[path]

    def _calls(self, stem: str) -> Capture:
        if stem not in self._captures:
            # The reference's and the runner's own are looked at in turns; those of earlier batches no more.
            self._captures = dict(list(self._captures.items())[-1:]) | {stem: open_capture(Path(stem))}
        return self._captures[stem]


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")


def is_allocation_failure(error: Exception) -> bool:
    import torch

    text = str(error)
    return (
        isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in text or "out of memory" in text
    )
