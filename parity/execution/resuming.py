"""A saved run continues after an interruption.

`started.json` is the first file of a saved run: the request, and the environment at its start. A batch that
is not done in a precision runs again, see `parity.execution.manifest`.
"""

from __future__ import annotations

from pathlib import Path

from parity.base.code import changed_code
from parity.base.environment import environment
from parity.base.errors import UserError
from parity.base.files import write_new
from parity.base.sealed import read_sealed, sealed
from parity.case import CaseReference, load_case
from parity.execution.folder import RunFolder
from parity.execution.manifest import check_batches, code_of
from parity.execution.request import Request


def write_started(request: Request, folder: RunFolder) -> None:
    """Save the request for a later `resume`. Raises `UserError` if the folder cannot be written."""
    content = {
        "cases": [case.reference.model_dump() for case in request.cases],
        "precisions": request.precisions,
        "runners": request.runners,
        "runners_asked": request.runners_asked,
        "data": _absolute(request.data),
        "checkpoint": _absolute(request.checkpoint),
        "timeout": request.timeout,
        "command": request.command,
        "streams": request.streams,
        "environment": environment(),
    }
    write_new(folder.started, sealed(content))


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
        started = read_sealed(folder.started)
        began_in = started["environment"]
        request = Request(
            cases=tuple(load_case(CaseReference(**case)) for case in started["cases"]),
            precisions=tuple(started["precisions"]),
            runners=tuple(started["runners"]),
            runners_asked=started["runners_asked"],
            data=_path(started["data"]),
            checkpoint=_path(started["checkpoint"]),
            save=folder.path,
            timeout=started["timeout"],
            command=started["command"],
            streams=started["streams"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _no_run(folder) from error
    _check_environment(folder, began_in)
    check_batches(folder)
    _check_code(folder)
    return request


def _no_run(folder: RunFolder) -> UserError:
    return UserError(
        "resume", str(folder.path), "holds no run that was begun with --save", "begin one with --save"
    )


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
