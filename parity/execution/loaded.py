"""A runner of a process with its loaded model, and the files that its commands read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar

import numpy as np
import torch

from parity.base.code import add_unlisted, imported_code
from parity.base.precision import Precision
from parity.capture.captures import Capture
from parity.capture.sources import sources
from parity.capture.store import open_capture
from parity.case import Case, CaseReference, load_case
from parity.inputs.arrays import load as load_arrays
from parity.inputs.weights import load_export
from parity.runners import Runner, make_runner
from parity.runners.base import (
    Appends,
    BuildsEngines,
    MeasuresCoverage,
    TapsModules,
)
from parity.timing.measure import TimedCall

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


class LoadedRunner:
    """A runner, from the command that starts it to the model that it has loaded.

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
        self._places: dict[str, str] = {}
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
            return self._places
        self._captures.clear()
        self._in_place.clear()
        self._loaded = None
        case = source if isinstance(source, Case) else load_case(source)
        self._runner.load(case, precision, load_export(weights))
        # The digests of the imported files stay those of this moment.
        modules = self._runner.modules() if isinstance(self._runner, TapsModules) else {}
        add_unlisted(kind for module in modules.values() for kind in type(module).__mro__)
        imported_code()
        self._case = case
        self._loaded = source, precision, weights
        runner = self._runner
        self._places = sources(runner.modules(), case.entry) if isinstance(runner, TapsModules) else {}
        return self._places

    def _inputs(self, path: Path) -> Mapping[str, np.ndarray]:
        if path not in self._arrays:
            self._arrays = {path: load_arrays(path).arrays}
        return self._arrays[path]

    def _capture(self, stem: Path) -> Capture:
        if stem not in self._captures:
            # The reference's and the runner's own are in use together; those of earlier batches are not.
            self._captures = dict(list(self._captures.items())[-1:]) | {stem: open_capture(stem)}
        return self._captures[stem]
