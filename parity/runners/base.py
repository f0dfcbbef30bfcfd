"""The protocol of a runner, and its optional abilities, which a runner has by implementing their classes.

`Runner` is the protocol: load, run, time. Callers ask for an ability with `isinstance`:

    TapsModules      taps on every module; modules alone
    TapsAtOnce       taps are outputs of one graph, all in memory at once
    RecordsCalls     a capture with the calls of all modules and their inputs
    Appends          the incremental forward
    RangesModules    modules as ranges of a profile
    ReplaysGraphs    timed replays of the model's captured CUDA graph
    BuildsEngines    engines as results of their own
    MeasuresCoverage what the inputs ask of the port
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from parity.base.precision import Precision
from parity.capture.captures import Capture, ModuleCall
from parity.case import Case
from parity.coverage.questions import Coverage
from parity.timing.measure import Replayed, Timed, TimedCall

Arrays = Mapping[str, np.ndarray]
Tensors = Mapping[str, torch.Tensor]


class Unavailable(Exception):
    """A runner cannot run here or in this precision; the message is the reason for the report."""


class BuiltOnly(Exception):
    """A built engine cannot run here; the message is the reason for the report."""


class Refused(Exception):
    """A builder refuses a graph; the message names the builder, the reason and the line of the graph."""


class FailsWithSizes(Exception):
    """A port that runs with the sizes of its first batch does not run with others.

    Attributes:
        error: The library's error, with the places in the code.
        sizes: The sizes that differ from those of the first batch, in words; empty if none does.
        owners: Names the modules that a line of a file belongs to, in words; empty for other code.
    """

    def __init__(self, error: Exception, sizes: str, owners: Callable[[Path, int], str]) -> None:
        super().__init__(str(error))
        self.error, self.sizes, self.owners = error, sizes, owners


class Runner(abc.ABC):
    """Runs one case in one precision. It is created once, and loaded once per case and precision.

    Tensors cross this interface as host `torch.Tensor`s in the runner's own precision. Inputs are read-only
    NumPy arrays of the case. A constructor raises `Unavailable` where a library or a machine is missing.
    """

    @abc.abstractmethod
    def label(self) -> str:
        """The runner's full name in reports, such as `tripy (portable, cpu)`."""

    @abc.abstractmethod
    def load(self, case: Case, precision: Precision, weights: Tensors) -> None:
        """Build the model with float32 `weights`, rounded to the precision. Raises `Unavailable`."""

    @abc.abstractmethod
    def run(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        """Run the untapped model. Returns the outputs of the entry by tap name."""

    @abc.abstractmethod
    def time(self, arrays: Arrays, repeats: int) -> Timed:
        """Time synchronised runs of the untapped model, inputs already in place.

        Returns the seconds of each run. The result is the outputs of the last run by tap name, or an empty
        dictionary where the runner drops them.
        """

    def allocates_by_torch(self) -> bool:
        """Whether PyTorch's allocator counts the GPU memory of runs, and so knows its peak."""
        return False

    def widening(self) -> int:
        """Bytes of the loaded model's floating-point numbers over those of the tested precision."""
        return 1


class TapsModules(Runner):
    """A runner with a tap on every module, which also runs modules alone."""

    @abc.abstractmethod
    def run_tapped(self, arrays: Arrays, capture: Capture | None = None, whole: bool = True) -> Capture:
        """Run the model with a tap on every module.

        Args:
            arrays: The inputs.
            capture: Receives the taps; a new one in memory by default.
            whole: Whether the inputs are a whole batch, and not some rows of one.
        """

    def modules(self) -> Mapping[str, Any]:
        """The loaded model's modules by path, the model under ""; empty where there are no modules."""
        return {}

    def can_run(self, call: ModuleCall) -> bool:
        """Whether `run_call` can run a call.

        Its arguments must be known. Calls of the incremental forward need `Appends`.
        """
        return not call.opaque and (not call.appends or isinstance(self, Appends))

    @abc.abstractmethod
    def run_call(
        self, call: ModuleCall, inputs: Tensors, arrays: Arrays, whole: bool = True
    ) -> dict[str, torch.Tensor]:
        """Run one module alone on the inputs of the reference's module. Returns its taps.

        Args:
            call: The reference's call.
            inputs: Tensors of recorded calls by key.
            arrays: The inputs of the model.
            whole: Whether the inputs are a whole batch, and not some rows of one.
        """

    @abc.abstractmethod
    def timed_call(self, call: ModuleCall, inputs: Tensors, arrays: Arrays) -> TimedCall:
        """One module alone on the inputs of the reference's module, to be timed."""


class TapsAtOnce(TapsModules):
    """A runner whose taps are outputs of one graph: all of them are in memory at once."""


class RecordsCalls(TapsModules):
    """A runner that records the calls of all modules: the reference."""

    @abc.abstractmethod
    def record(self, arrays: Arrays, capture: Capture | None = None) -> Capture:
        """`run_tapped`, with the calls of all modules and their inputs."""


class Appends(Runner):
    """A runner of the incremental forward."""

    @abc.abstractmethod
    def run_incremental(self, arrays: Arrays) -> dict[str, torch.Tensor]:
        """Fill the cache, then append the last items of each row one after the other.

        Returns the outputs of the last step by tap name; nothing for a case without a cache.
        """

    def run_appending(self, arrays: Arrays) -> Capture:
        """The results and arguments of the calls that fill the cache and append the last items.

        Empty for a case without a cache, and for a form, whose modules receive other arguments.
        """
        return Capture()


class RangesModules(TapsModules):
    """A runner whose modules run one by one, and can be ranges of a profile."""

    @abc.abstractmethod
    def module_ranges(self) -> contextlib.AbstractContextManager[None]:
        """In the body, each module that runs is a range of the profile, named by its path."""


class ReplaysGraphs(Runner):
    """A runner that times replays of the model's captured CUDA graph. Without a GPU there are none."""

    @abc.abstractmethod
    def time_replays(self, arrays: Arrays, repeats: int) -> Replayed:
        """Time replays of the untapped model; 0 only captures its graph."""


class BuildsEngines(Runner):
    """A runner whose engines are results of their own, even where they cannot run."""

    @abc.abstractmethod
    def build(self, arrays: Arrays, folder: Path) -> list[dict[str, Any]]:
        """Build engines of the untapped model for these shapes into a folder.

        Returns the fields of a `parity.execution.record.BuildRecord` for each. Where the engines cannot run,
        later runs raise `BuiltOnly`.

        Raises:
            Refused: The builder refuses the graph.
        """


class MeasuresCoverage(Runner):
    """A runner that measures what inputs ask of a port, or of the reference's bounds."""

    @abc.abstractmethod
    def coverage(self, arrays: Arrays, recorded: Capture) -> Coverage:
        """Questions about the loaded model with the answers of one batch. No judged graph changes.

        All batches of a loaded model together give all questions and answers. A batch leaves out those of
        earlier ones.

        Args:
            arrays: The inputs.
            recorded: The reference's capture of the batch, with its calls.
        """
