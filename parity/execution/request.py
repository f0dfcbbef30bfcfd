"""What a run is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parity.case import Case


@dataclass(frozen=True)
class Request:
    """What the user asked for, every name checked.

    Attributes:
        cases: Cases to run.
        precisions: Names in `PRECISIONS`.
        runners: Runners to judge; the reference and the oracle always run.
        runners_asked: Whether the user named them: then one that is unavailable is an error.
        data: A file of recorded data in place of synthetic input.
        checkpoint: Trained weights in place of the sensitive initial ones.
        save: Folder that keeps everything, or None.
        limit: Seconds that one step of one runner may take.
        command: The command line, for the report.
        profile: Folder for a trace of every runner, or None.
    """

    cases: tuple[Case, ...]
    precisions: tuple[str, ...]
    runners: tuple[str, ...]
    runners_asked: bool
    data: Path | None
    checkpoint: Path | None
    save: Path | None
    limit: float
    command: str
    profile: Path | None = None
