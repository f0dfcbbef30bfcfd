"""What every runner offers."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from parity.base.precision import Precision
from parity.capture.captures import Capture, ModuleCall
from parity.case import Case
from parity.timing.measure import Replayed


class Unavailable(Exception):
    """This runner cannot run here or in this precision; the message is the reason that users read."""


class BuiltOnly(Exception):
    """What was built cannot run here; the message is the reason that users read."""


class Refused(Exception):
    """The graph was refused by what should run it; the message says by whom, why, and which line's it is."""


class Runner(abc.ABC):
    """Runs one case in one precision; made once and loaded once per case and precision.

    Tensors cross this interface as host `torch.Tensor`s in the runner's own precision, inputs as
    read-only NumPy arrays of the case.
    """

    taps_modules = True
    """Whether `run_tapped`, `run_call` and `time_call` exist; False for runners that fuse modules."""
    holds_taps = False
    """Whether `run_tapped` has all taps in memory at once, as outputs of one graph."""
    appends = True
    """Whether `run_incremental` exists."""
    builds = False
    """Whether `build` exists: the engine is a result of its own, wherever it can run."""
    ranges_modules = False
    """Whether `module_ranges` shows modules as they run in the model."""
    in_torchs_memory = True
    """Whether PyTorch's allocator gives and counts the GPU memory that runs take: it knows the peak."""

    widening = 1
    """Bytes of its floating-point numbers over those of the tested precision."""
    in_slices = False
    """Whether what is run now are some rows of a batch that takes too much memory at once."""

    @abc.abstractmethod
    def label(self) -> str:
        """The runner's full name in reports, such as `tripy (portable, cpu)`."""

    @abc.abstractmethod
    def load(self, case: Case, precision: Precision, weights: Mapping[str, torch.Tensor]) -> None:
        """Build the model with float32 `weights`, rounded to the precision. Raises `Unavailable`."""

    @abc.abstractmethod
    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """Run the untapped model. Returns the entry point's outputs by tap name."""

    @abc.abstractmethod
    def time(self, arrays: Mapping[str, np.ndarray], repeats: int) -> list[float]:
        """Seconds of `repeats` synchronised runs of the untapped model, inputs already in place."""

    def timed_outputs(self) -> dict[str, torch.Tensor]:
        """Outputs of the last run that `time` timed, by tap name; nothing where they are not kept."""
        return {}

    def time_replays(self, arrays: Mapping[str, np.ndarray], repeats: int) -> Replayed:
        """`time`, as replays of a captured CUDA graph; nothing and no reason where there is no such thing."""
        return Replayed([])

    def build(self, arrays: Mapping[str, np.ndarray], folder: Path) -> list[dict]:
        """Build engines of the untapped model for these shapes, and keep them in `folder`.

        Returns the fields of a `parity.execution.record.BuildRecord` for each. Raises `Refused`. Where the
        engines cannot run, all running raises `BuiltOnly`.
        """
        raise NotImplementedError

    def run_tapped(
        self, arrays: Mapping[str, np.ndarray], record_calls: bool = False, capture: Capture | None = None
    ) -> Capture:
        """Run with a tap on every module; `record_calls` also keeps the calls and their inputs.

        `capture` receives the taps, as they come where `holds_taps` is False; a new one in memory by default.
        """
        raise NotImplementedError

    def can_run(self, call: ModuleCall) -> bool:
        """Whether `run_call` can run a call: one that appends an item is of the incremental forward."""
        return self.appends or not call.appends

    def run_call(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]
    ) -> dict[str, torch.Tensor]:
        """Run one module alone on the inputs that the reference's module saw. Returns its taps."""
        raise NotImplementedError

    def time_call(self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], repeats: int) -> list[float]:
        """Seconds of `repeats` synchronised runs of one module that `run_call` has run before.

        Empty where the module cannot be timed by itself.
        """
        raise NotImplementedError

    def time_call_replays(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], repeats: int
    ) -> Replayed:
        """`time_call`, as replays of a captured CUDA graph."""
        return Replayed([])

    def module_ranges(self) -> contextlib.AbstractContextManager[None]:
        """In its body, where `ranges_modules`, each module that runs is a range of a profile, by its path."""
        return contextlib.nullcontext()

    def run_incremental(self, arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """Fill the cache with all but each row's last item, then append that item.

        Returns the last step's outputs by tap name, or nothing where the case has no such path.
        """
        raise NotImplementedError
