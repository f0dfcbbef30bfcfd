"""The manifest of a saved run: its facts, and the digest of each of its files.

`manifest.json` is written last, and marks the run as complete. `files.json` marks a batch as done in a
precision, with the digests of its files and of the code that made them. A replay or a resumed run reads
nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict

from parity.base.code import file_digest
from parity.base.environment import environment
from parity.base.errors import UserError
from parity.base.files import write_new
from parity.base.sealed import read_sealed, sealed
from parity.execution.case_files import CaseDescription
from parity.execution.folder import PrecisionFolder, RunFolder
from parity.execution.request import Request


class Manifest(BaseModel):
    """The facts of a saved run.

    Attributes:
        command: Command line of the run.
        environment: Machine and libraries, see `parity.base.environment`.
        code: Digests of the code behind the captures, see `parity.base.code.imported_code`.
        runners: Runners of the request.
        runners_asked: The runners that the user named.
        cases: Facts about each case, in the order of the run.
        files: SHA-256 by path relative to the run's folder; of all files but the manifest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str
    environment: dict[str, str]
    code: dict[str, str]
    runners: tuple[str, ...]
    runners_asked: tuple[str, ...]
    cases: tuple[CaseDescription, ...]
    files: dict[str, str]


def write_files(folder: PrecisionFolder, code: Iterable[Mapping[str, str]]) -> None:
    """Mark a batch as done in a precision.

    Args:
        folder: Folder of the batch in the precision.
        code: Digests of the code in each process that ran the batch.

    Raises:
        UserError: The folder cannot be written, or the code differs from process to process.
    """
    files = {name: file_digest(path) for name, path in _files(folder.path).items()}
    write_new(folder.files, sealed({"files": files, "code": _one_state(code)}))


def check_batches(folder: RunFolder) -> None:
    """Check the files of all batches that are done in an interrupted run.

    Raises:
        UserError: A file is missing, added or other than the run wrote it, or the code has changed since.
    """
    for batch in folder.done():
        files = _done(batch, "files")
        # Files for Polygraphy come later, and no verdict reads them.
        present = _files(batch.path, without=batch.polygraphy)
        _check("resume", batch.path, files, set(present) - {batch.files.name})


def code_of(folder: RunFolder) -> dict[str, str]:
    """Digests of the code behind the captures of all batches that are done.

    Raises:
        UserError: The code changed from one batch to another.
    """
    return _one_state(_done(batch, "code") for batch in folder.done())


def _one_state(code: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """All digests of code, by name. Raises `UserError` if two differ."""
    state: dict[str, str] = {}
    for name, digest in itertools.chain.from_iterable(digests.items() for digests in code):
        if state.setdefault(name, digest) != digest:
            raise UserError(
                "code",
                name,
                "changed during the run",
                "run again: results of two states of the code are not one run",
            )
    return state


def _done(batch: PrecisionFolder, kind: Literal["files", "code"]) -> dict[str, str]:
    """Digests of a batch that is done in a precision. Raises `UserError` if they are not as it wrote them."""
    try:
        digests: dict[str, str] = read_sealed(batch.files)[kind]
    except (OSError, ValueError, KeyError) as error:
        raise _changed("resume", batch.files) from error
    return digests


def write_manifest(
    folder: RunFolder, request: Request, runners_asked: Sequence[str], cases: Sequence[CaseDescription]
) -> None:
    """Complete a saved run.

    Args:
        folder: Folder of the run.
        request: The run.
        runners_asked: The runners that the user named.
        cases: Facts about each case.

    Raises:
        UserError: The folder cannot be written, or the code changed during the run.
    """
    known = {
        (batch.path.relative_to(folder.path) / name).as_posix(): digest
        for batch in folder.done()
        for name, digest in _done(batch, "files").items()
    }
    files = _files(folder.path)
    manifest = Manifest(
        command=request.command,
        environment=environment(),
        code=code_of(folder),
        runners=request.runners,
        runners_asked=tuple(runners_asked),
        cases=tuple(cases),
        files={name: known.get(name) or file_digest(path) for name, path in files.items()},
    )
    write_new(folder.manifest, sealed(manifest.model_dump(mode="json")))


def read_manifest(folder: RunFolder) -> Manifest:
    """The facts of a complete run whose files are as it wrote them.

    Raises:
        UserError: The run is not complete, or a file is missing, added to a case, or changed.
    """
    if not folder.manifest.is_file():
        raise UserError(
            "replay",
            str(folder.path),
            "holds no complete saved run",
            "give the folder of a run with --save",
        )
    try:
        manifest = Manifest.model_validate(read_sealed(folder.manifest))
    except (OSError, ValueError) as error:
        raise _changed("replay", folder.manifest) from error
    names = {description.case.name for description in manifest.cases}
    _check(
        "replay",
        folder.path,
        manifest.files,
        {name for name in _files(folder.path) if PurePosixPath(name).parts[0] in names},
    )
    return manifest


def _files(folder: Path, without: Path | None = None) -> dict[str, Path]:
    """All files below a folder by their relative paths; hidden files are those of unfinished writes."""
    paths = (path for path in sorted(folder.rglob("*")) if not path.name.startswith("."))
    return {
        path.relative_to(folder).as_posix(): path
        for path in paths
        if not path.is_dir() and (without is None or not path.is_relative_to(without))
    }


def _check(field: str, folder: Path, files: Mapping[str, str], present: Iterable[str]) -> None:
    """Raise `UserError` unless all files have their digests and the present ones are among them."""
    for name, digest in files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(field, str(path), "is missing", "restore the file, or run again")
        try:
            same = file_digest(path) == digest
        except OSError as error:
            raise UserError(
                field, str(path), f"cannot be read ({error.strerror})", "restore the file, or run again"
            ) from error
        if not same:
            raise _changed(field, path)
    added = sorted(set(present) - files.keys())
    if added:
        raise UserError(field, str(folder / added[0]), "is no file of the run", "remove it, or run again")


def _changed(field: str, path: Path) -> UserError:
    return UserError(
        field, str(path), "is not as the run wrote it", "restore the file, or run again into a new folder"
    )
