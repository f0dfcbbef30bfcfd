"""The manifest of a saved run: its facts, and the digest of each of its files.

`manifest.json` is written last, and marks the run as complete. `files.json` marks a batch as done in a
precision, with the digests of its files and of the code that made them. A replay or a resumed run reads
nothing else. Both kinds of file have to agree. Their digests have no key: they show damage and mistakes, and
not a forger who writes all of them anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict

from parity.base.code import Code, file_digest, file_digests, one_state
from parity.base.environment import environment
from parity.base.errors import UserError
from parity.base.files import MAX_BYTES, parse_json, write_new
from parity.base.sealed import read_sealed, sealed
from parity.execution.case_files import CaseDescription
from parity.execution.done import changed, done_code, done_digests, origins, place
from parity.execution.folder import PrecisionFolder, RunFolder, without_run
from parity.execution.record import ORACLE, REFERENCE, TAKES_NO_MORE, read_record
from parity.execution.request import Request
from parity.inputs.weights import exported_digest


class Manifest(BaseModel):
    """The facts of a saved run.

    Attributes:
        command: Command line of the run.
        environment: Machine and libraries, see `parity.base.environment`.
        code: The code behind the captures, see `parity.base.code.imported_code`.
        runners: Runners of the request.
        runners_asked: The runners that the user named.
        cases: Facts about each case, in the order of the run.
        files: SHA-256 by path relative to the run's folder; of all files but the manifest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str
    environment: dict[str, str]
    code: dict[str, Code]
    runners: tuple[str, ...]
    runners_asked: tuple[str, ...]
    cases: tuple[CaseDescription, ...]
    files: dict[str, str]


def write_files(folder: PrecisionFolder, code: Iterable[Mapping[str, Code]]) -> None:
    """Mark a batch as done in a precision.

    Args:
        folder: Folder of the batch in the precision.
        code: The code in each process that ran the batch.

    Raises:
        UserError: The folder cannot be written, or the code differs from process to process.
    """
    paths = _files(folder.path)
    files = dict(zip(paths, file_digests(paths.values()), strict=True))
    content = {
        "batch": place(folder),
        "files": files,
        "code": {name: asdict(own) for name, own in one_state(code).items()},
        "origins": origins(folder.batch),
    }
    write_new(folder.files, sealed(content))


def check_batches(folder: RunFolder, cases: Collection[str], precisions: Collection[str]) -> None:
    """Check the files of all batches that are done in an interrupted run.

    Args:
        folder: Folder of the run.
        cases, precisions: Names of its cases and precisions.

    Raises:
        UserError: A file is missing, added or other than the run wrote it, a batch is of another case or
            precision, or a link leads to a folder.
    """
    _check_links("resume", folder, cases)
    for batch in folder.done():
        if batch.batch.path.parent.name not in cases or batch.path.name not in precisions:
            raise UserError("resume", str(batch.path), "is no batch of the run", "remove it, or run again")
        files = done_digests(batch, "files", "resume")
        # Files for Polygraphy come later, and no verdict reads them.
        present = _files(batch.path, without=batch.polygraphy)
        _check("resume", batch.path, files, set(present) - {batch.files.name})


def code_of(folder: RunFolder, field: str = "resume") -> dict[str, Code]:
    """The code behind the captures of all batches that are done.

    Args:
        folder: Folder of the run.
        field: The verb that reads it.

    Raises:
        UserError: The code changed from one batch to another.
    """
    return one_state(done_code(batch, field) for batch in folder.done())


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
        UserError: The folder cannot be written, or the code, weights or inputs changed during the run.
    """
    known = {
        (batch.path.relative_to(folder.path) / name).as_posix(): digest
        for batch in folder.done()
        for name, digest in done_digests(batch, "files", "--save").items()
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
    _check_described("--save", folder, manifest)
    _check_origins("--save", folder, manifest)
    write_new(folder.manifest, sealed(manifest.model_dump(mode="json")))


def read_manifest(folder: RunFolder, field: str = "replay") -> Manifest:
    """The facts of a complete run whose files are as it wrote them.

    Args:
        folder: Folder of the run.
        field: The verb that reads it.

    Raises:
        UserError: The run is not complete, a file is missing, added to a case, or changed, or a link leads to
            a folder.
    """
    if not folder.manifest.is_file():
        problem = "holds no complete saved run"
        raise without_run(field, folder.path, problem, "give the folder of a run with --save")
    try:
        manifest = Manifest.model_validate(read_sealed(folder.manifest))
    except (OSError, ValueError) as error:
        raise changed(field, folder.manifest) from error
    names = {description.case.name for description in manifest.cases}
    _check_links(field, folder, names)
    own = {name for name in _files(folder.path) if PurePosixPath(name).parts[0] in names}
    _check(field, folder.path, manifest.files, own)
    _check_described(field, folder, manifest)
    _check_origins(field, folder, manifest)
    _check_request(field, folder, manifest)
    for case in manifest.cases:
        path = folder.case(case.case.name).weights
        if exported_digest(path) != case.weights_digest:
            raise changed(field, path)
        for precision in case.precisions:
            _check_runners(field, folder, manifest, case, precision)
    return manifest


def _check_described(field: str, folder: RunFolder, manifest: Manifest) -> None:
    """Raise `UserError` unless the manifest describes the batches that are done, with their own digests."""
    described = set()
    if _repeats(case.case.name for case in manifest.cases):
        raise changed(field, folder.manifest)
    for case in manifest.cases:
        precisions = {name for batch in case.batches for name in batch.precisions}
        if not precisions or precisions != set(case.precisions):
            raise changed(field, folder.manifest)
        if _repeats(case.precisions) or _repeats(batch.name for batch in case.batches):
            raise changed(field, folder.manifest)
        for number, batch in enumerate(case.batches):
            batch_folder = folder.case(case.case.name).batch(number)
            described |= {batch_folder.precision(name).path for name in batch.precisions}
    done = folder.done()
    for path in sorted(described ^ {batch.path for batch in done}):
        raise UserError(
            field, str(path), "is not a batch that the manifest describes", "restore the run, or run again"
        )
    for batch in done:
        inside = batch.path.relative_to(folder.path).as_posix()
        for name, digest in done_digests(batch, "files", field).items():
            if manifest.files.get(f"{inside}/{name}") != digest:
                raise changed(field, batch.path / name)


def _check_origins(field: str, folder: RunFolder, manifest: Manifest) -> None:
    """Raise `UserError` unless each batch ran in all precisions on the weights and inputs of the manifest."""
    for case in manifest.cases:
        for number, batch in enumerate(case.batches):
            batch_folder = folder.case(case.case.name).batch(number)
            own = origins(batch_folder)
            if own["weights"] != case.weights_digest:
                raise changed(field, batch_folder.case.weights)
            if own["inputs"] != batch.digest:
                raise changed(field, batch_folder.inputs)
            for precision in batch.precisions:
                done = batch_folder.precision(precision)
                if done_digests(done, "origins", field) != own:
                    raise UserError(
                        field,
                        str(done.path),
                        "ran on other weights or inputs than the run has",
                        "run again into a new folder: captures of two sets are not one run",
                    )


def _repeats(names: Iterable[str]) -> bool:
    names = list(names)
    return len(set(names)) < len(names)


def _check_request(field: str, folder: RunFolder, manifest: Manifest) -> None:
    """Raise `UserError` unless the manifest is of the request that began the run, and of its code."""
    try:
        started = read_sealed(folder.started)
        same = all(
            (
                [case.case.model_dump() for case in manifest.cases] == started["cases"],
                all(list(case.precisions) == started["precisions"] for case in manifest.cases),
                list(manifest.runners) == started["runners"],
                list(manifest.runners_asked) == (started["runners"] if started["runners_asked"] else []),
                manifest.command == started["command"],
                manifest.environment == started["environment"],
            )
        )
    except (OSError, ValueError, KeyError) as error:
        raise changed(field, folder.started) from error
    if not same or manifest.code != code_of(folder, field):
        raise changed(field, folder.manifest)


def _check_runners(
    field: str, folder: RunFolder, manifest: Manifest, case: CaseDescription, precision: str
) -> None:
    """Raise `UserError` unless all batches of a case's plan have the asked runners in a precision."""
    first: set[str] | None = None
    # Of runners that cannot run here one batch tells all.
    left: set[str] = set()
    for number, batch in enumerate(case.batches):
        # Batches with more rows have the runners that need them.
        if precision not in batch.precisions or batch.further:
            continue
        path = folder.case(case.case.name).batch(number).precision(precision).record
        runners = read_record(path).runners
        first = set(runners) if first is None else first
        if not first - left <= set(runners) <= first:
            raise changed(field, path)
        left |= {name for name, runner in runners.items() if runner.status in TAKES_NO_MORE}
    judged = (first or set()) - {REFERENCE, ORACLE}
    if not set(manifest.runners_asked) - {REFERENCE, ORACLE} <= judged <= set(manifest.runners):
        raise changed(field, folder.manifest)


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
    listed = _files(folder)
    for name, digest in files.items():
        path = folder / name
        if name not in listed or not path.is_file():
            raise UserError(field, str(path), "is missing", "restore the file, or run again")
        try:
            same = _is_as_long_as_it_says(path) and file_digest(path) == digest
        except OSError as error:
            raise UserError(
                field, str(path), f"cannot be read ({error.strerror})", "restore the file, or run again"
            ) from error
        if not same:
            raise changed(field, path)
    added = sorted(set(present) - files.keys())
    if added:
        raise UserError(field, str(folder / added[0]), "is no file of the run", "remove it, or run again")


def _is_as_long_as_it_says(path: Path) -> bool:
    """Whether safetensors have the length of their header: the digest of a sparse file may take hours."""
    if path.suffix != ".safetensors":
        return True
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            entries = parse_json(stream.read(min(length, MAX_BYTES)))
            ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
            return path.stat().st_size == 8 + length + max(ends, default=0)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            return False


def _check_links(field: str, folder: RunFolder, cases: Iterable[str]) -> None:
    """Raise `UserError` for a link to a folder in a case: files behind it are in no list of files."""
    for case in sorted(cases):
        path = folder.case(case).path
        for link in (path, *sorted(path.rglob("*"))):
            if link.is_symlink() and link.is_dir():
                raise UserError(
                    field, str(link), "is a link to a folder", "put the folder itself in its place"
                )
