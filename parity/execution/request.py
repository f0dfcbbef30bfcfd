"""A run as the user asked for it, and one batch of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parity.base.precision import Precision
from parity.capture.slices import MemoryBudget
from parity.case import Case
from parity.execution.folder import BatchFolder
from parity.runners.forms import FORMS


@dataclass(frozen=True)
class Request:
    """The requested run, with checked names.

    Attributes:
        cases: Cases to run.
        precisions: Names in `PRECISIONS`.
        runners: Runners to judge; the reference and the oracle always run.
        runners_asked: Whether the user named them. An unavailable one is then an error.
        data: A file of recorded data in place of synthetic input.
        checkpoint: Trained weights in place of the sensitive initial ones.
        save: Folder that keeps everything, or None.
        timeout: Time limit of one step of one runner, s.
        command: The command line, for the report.
        streams: Whether short streams of the cases are judged too.
        profile: Folder for a trace of every runner, or None.
        memory: Largest memory of the run in bytes; None for a share of the machine's.
        budget: Sizes of slices; None for those that follow from the memory.
        rows: Rows that the typical batch must have; None for any number.
    """

    cases: tuple[Case, ...]
    precisions: tuple[str, ...]
    runners: tuple[str, ...]
    runners_asked: bool
    data: Path | None
    checkpoint: Path | None
    save: Path | None
    timeout: float
    command: str
    streams: bool = False
    profile: Path | None = None
    memory: float | None = None
    budget: MemoryBudget | None = None
    rows: int | None = None

    @property
    def has_one_case(self) -> bool:
        """Whether the run has one case. Bad input that a runner meets ends it then."""
        return len(self.cases) == 1

    def covers(self, precision: Precision) -> bool:
        """Whether this precision measures coverage. One does: the source is the same in all of them."""
        return precision.name == ("fp32" if "fp32" in self.precisions else self.precisions[0])

    def runners_of(self, case: Case) -> tuple[str, ...]:
        """The requested runners; without a request, the default ones that the case has a form for."""
        return tuple(
            name
            for name in self.runners
            if self.runners_asked or name not in FORMS or FORMS[name] in case.forms
        )


@dataclass(frozen=True)
class Batch:
    """One batch of a case in one precision.

    Attributes:
        case: The case.
        precision: The tested precision.
        folder: Folder of the batch, with its inputs.
        weights: Folder of the exported weights.
        name: Name of the batch for errors; empty for the first one, which needs none.
        is_only_case: Whether the run has no other case: then bad input of this one ends the run.
    """

    case: Case
    precision: Precision
    folder: BatchFolder
    weights: Path
    name: str = ""
    is_only_case: bool = True


@dataclass(frozen=True)
class Steps:
    """The steps of a batch besides its runs with and without taps.

    Attributes:
        modules_alone: Every module also runs alone, on the inputs of the reference's module.
        timed: The runners are timed.
        row_trials: Rows also run in other batches, and the batch a second time.
        magnitudes: Modules of a port also run alone at other magnitudes of their inputs.
        covers: What the batch asks of the port is measured.
        appends_tapped: The incremental forward also runs with taps.
        profiles: Folder for traces; None for no traces.
    """

    modules_alone: bool = True
    timed: bool = False
    row_trials: bool = False
    magnitudes: bool = False
    covers: bool = False
    appends_tapped: bool = False
    profiles: Path | None = None
