"""The record of one batch in one precision: how each runner ended, and its times."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from parity.base.errors import UserError
from parity.base.files import parse_json

REFERENCE = "torch"
"""The runner whose modules and calls are the truth at the tested precision."""
ORACLE = "oracle"
"""The runner in float64 that all others are measured against."""
PORT = "tripy"
"""The runner of the port. A run that has it is incomplete without its result, whether it is named or not."""


_NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Status(str, Enum):
    """The end of a runner's work."""

    OK = "OK"
    UNAVAILABLE = "UNAVAILABLE"
    CRASHED = "CRASHED"
    TIMED_OUT = "TIMED OUT"
    OUT_OF_MEMORY = "OUT OF MEMORY"
    ERROR = "ERROR"
    BUILT = "BUILT"
    REFUSED = "REFUSED"
    UNWRITABLE = "UNWRITABLE"
    """The run's folder cannot be written: no row of a report, but the end of the run."""


NOT_HERE = (Status.UNAVAILABLE, Status.BUILT, Status.REFUSED)
"""Ends of a runner that cannot run on this machine."""
TAKES_NO_MORE = (*NOT_HERE, Status.TIMED_OUT)
"""Ends of a runner in a batch of a plan after which it gets no other one: it cannot run, or used its time."""


class RunnerFailure(Exception):
    """A runner gave no result.

    Attributes:
        status: Status at its end.
        reason: One line for the report.
    """

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(f"{status.value}: {reason}")
        self.status = status
        self.reason = reason


class RowTrialRecord(BaseModel):
    """Differences of a batch's rows in one trial; see `parity.capture.rows.RowDifferences`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    rows: tuple[int, ...]
    taps: dict[str, list[float]]

    @model_validator(mode="after")
    def _check_rows(self) -> RowTrialRecord:
        for tap, differences in self.taps.items():
            if not differences or len(differences) != len(self.rows):
                raise ValueError(f"{tap} has {len(differences)} differences of {len(self.rows)} rows")
        return self


class MagnitudeRecord(BaseModel):
    """The errors of one result at another magnitude; see `parity.runners.magnitudes.Magnitude`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tap: str
    kind: str
    port: _NotNegative
    reference: _NotNegative
    broken: Annotated[int, Field(ge=0)]
    compared: Annotated[int, Field(gt=0)]


class QuantisedLayer(BaseModel):
    """A layer of an engine that reads quantised numbers.

    Attributes:
        type: The library's name of its kind.
        operands: Types of its quantised operands.
        modules: Modules whose results it computes, without those inside them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str
    operands: tuple[str, ...]
    modules: tuple[str, ...]


class BuildRecord(BaseModel):
    """An engine that was built of a whole model.

    Attributes:
        shape: "static", or "dynamic batch" from 1 to the case's.
        library: The library that built it.
        layers: Layers of the network that the builder received.
        engine_layers: Layers of the engine.
        bytes: Size of the serialized engine.
        seconds: Build time, from the graph that nvtripy recorded.
        dtypes: Types that the engine's layers read and write.
        key: Name of its files in a saved run, `.engine` and `.json`; the latter lists the layers.
        quantised: Layers that read quantised numbers, where the runner lists them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    shape: str
    library: str
    layers: int
    engine_layers: int
    bytes: int
    seconds: float
    dtypes: tuple[str, ...]
    key: str
    quantised: tuple[QuantisedLayer, ...] = ()


class RunnerRecord(BaseModel):
    """Facts about one runner besides its captures; times in seconds.

    Attributes:
        label: Full name in reports.
        taps_modules: Whether it runs modules one by one.
        appends: Whether it has an incremental forward.
        status, reason: Status at its end, and the reason of another status than OK.
        problems: Errors of isolated calls, by tap.
        row_trials: Differences of rows in other batches and in a second run; None if nothing was tried.
        magnitudes: Errors of modules alone at other magnitudes of their inputs.
        seconds: Runs of the whole model.
        module_seconds: Runs of single calls, by tap.
        replay_seconds, module_replay_seconds: The same as replays of a CUDA graph.
        replay_reasons: Reasons for missing replays, by tap; the whole model has the key "".
        peak_bytes: Peak of GPU memory during runs of the whole model.
        timing_reason: Reason for missing times.
        builds: Engines of the whole model.
        coverage_reason: Reason for missing coverage.
        sources: File and line of the code of the model's modules by path, the entry under ""; without
            installed libraries.
    """

    label: str = ""
    taps_modules: bool = True
    appends: bool = True
    status: Status = Status.OK
    reason: str = ""
    problems: dict[str, str] = {}
    row_trials: list[RowTrialRecord] | None = None
    magnitudes: list[MagnitudeRecord] = []
    seconds: list[_NotNegative] = []
    module_seconds: dict[str, list[_NotNegative]] = {}
    replay_seconds: list[_NotNegative] = []
    module_replay_seconds: dict[str, list[_NotNegative]] = {}
    replay_reasons: dict[str, str] = {}
    peak_bytes: int | None = None
    timing_reason: str = ""
    builds: list[BuildRecord] = []
    coverage_reason: str = ""
    sources: dict[str, str] = {}


class Record(BaseModel):
    """One batch in one precision.

    Attributes:
        precision: Name of the precision.
        runners: Records by runner.
        gpu: State of the GPU before and after timing.
    """

    precision: str
    runners: dict[str, RunnerRecord]
    gpu: dict[str, str] = {}


def read_record(path: Path) -> Record:
    """Read a record.

    Raises:
        UserError: The record is missing or damaged, is of another precision than its folder, or lacks the
            reference or the oracle.
    """
    try:
        text = path.read_text()
        parse_json(text)
        record = Record.model_validate_json(text)
    except (OSError, ValueError) as error:
        raise UserError("record", str(path), "is missing or damaged", "run again") from error
    if record.precision != path.parent.name:
        raise UserError("record", str(path), f"is of {record.precision}", "run again")
    for name in (REFERENCE, ORACLE):
        if name not in record.runners:
            raise UserError("record", str(path), f"has no runner {name}", "run again")
    return record
