"""A saved run continues after an interruption.

`started.json` is the first file of a saved run: the request, and the environment at its start. A batch that
is not done in a precision runs again, see `parity.execution.manifest`.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from parity.base.code import changed_code
from parity.base.environment import environment
from parity.base.errors import UserError
from parity.base.files import write_new
from parity.base.precision import PRECISIONS
from parity.base.sealed import read_sealed, sealed
from parity.case import CaseReference, load_case
from parity.execution.folder import RunFolder, without_run
from parity.execution.manifest import check_batches, code_of
from parity.execution.request import Request
from parity.runners import RUNNERS


class Started(BaseModel):
    """The content of `started.json`: a request with names in place of objects, and the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    cases: list[CaseReference] = Field(min_length=1)
    precisions: list[str] = Field(min_length=1)
    runners: list[str]
    runners_asked: bool
    data: str | None
    checkpoint: str | None
    timeout: float = Field(gt=0.0, allow_inf_nan=False)
    command: str
    streams: bool
    memory: float | None = Field(gt=0.0, allow_inf_nan=False)
    environment: dict[str, str]

    @field_validator("precisions", "runners")
    @classmethod
    def _check_names(cls, names: list[str], info: ValidationInfo) -> list[str]:
        known = PRECISIONS if info.field_name == "precisions" else RUNNERS
        if not set(names) <= set(known) or len(set(names)) < len(names):
            raise ValueError("unknown or repeated names")
        return names

    @field_validator("cases")
    @classmethod
    def _check_cases(cls, cases: list[CaseReference]) -> list[CaseReference]:
        if len({case.name for case in cases}) < len(cases):
            raise ValueError("repeated cases")
        return cases


def write_started(request: Request, folder: RunFolder) -> None:
    """Save the request for a later `resume`. Raises `UserError` if the folder cannot be written."""
    started = Started(
        cases=[case.reference for case in request.cases],
        precisions=list(request.precisions),
        runners=list(request.runners),
        runners_asked=request.runners_asked,
        data=_absolute(request.data),
        checkpoint=_absolute(request.checkpoint),
        timeout=request.timeout,
        command=request.command,
        streams=request.streams,
        memory=request.memory,
        environment=environment(),
    )
    write_new(folder.started, sealed(started.model_dump(mode="json")))


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def check_started(folder: RunFolder) -> None:
    """Raises `UserError` for a folder without a run."""
    if not folder.started.is_file():
        raise _no_run(folder)


def read_started(folder: RunFolder) -> Request:
    """The request of an interrupted run.

    Raises:
        UserError: The folder holds no such run, one that is complete, one of another environment or of other
            code, or its files are not as it wrote them.
    """
    if folder.manifest.exists():
        raise UserError("resume", str(folder.path), "is complete", "judge it again with `replay`")
    try:
        started = Started.model_validate(read_sealed(folder.started))
    except (OSError, ValueError) as error:
        raise _no_run(folder) from error
    _check_environment(folder, started.environment)
    check_batches(folder, [case.name for case in started.cases], started.precisions)
    # A case may say where its code is, so that it is imported first.
    cases = tuple(map(load_case, started.cases))
    _check_code(folder)
    return Request(
        cases=cases,
        precisions=tuple(started.precisions),
        runners=tuple(started.runners),
        runners_asked=started.runners_asked,
        data=_path(started.data),
        checkpoint=_path(started.checkpoint),
        save=folder.path,
        timeout=started.timeout,
        command=started.command,
        streams=started.streams,
        memory=started.memory,
    )


def _no_run(folder: RunFolder) -> UserError:
    problem = "holds no run that was begun with --save"
    return without_run("resume", folder.path, problem, "begin one with --save")


def _check_environment(folder: RunFolder, began_in: dict[str, str]) -> None:
    here = environment()
    changed = sorted(name for name in began_in | here if began_in.get(name) != here.get(name))
    if changed:
        raise UserError(
            "resume",
            str(folder.path),
            f"was begun in another environment ({', '.join(changed)} changed)",
            "go on where it was begun, or begin again: results of two environments are not one run",
        )


def _check_code(folder: RunFolder) -> None:
    changed = sorted(changed_code(code_of(folder)))
    if changed:
        raise UserError(
            "resume",
            str(folder.path),
            f"has results of other code ({', '.join(changed)} changed since)",
            "begin again: results of two states of the code are not one run",
        )


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
