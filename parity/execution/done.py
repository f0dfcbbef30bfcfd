"""A batch of a saved run that is done in a precision, and the weights and inputs that its captures are of.

`files.json` marks the batch as done. It has the digests of the batch's files, of their code, and of its
origins: the weights and the arrays that the runners read. A run has one set of weights, and a batch the same
arrays in every precision. A resumed run makes both again, and is refused if they are others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import TypeAdapter

from parity.base.code import Code
from parity.base.errors import UserError
from parity.base.sealed import read_sealed
from parity.execution.folder import BatchFolder, CaseFolder, PrecisionFolder
from parity.inputs.arrays import CaseInputs, load
from parity.inputs.weights import declared_digest, present_digests

_DIGESTS = TypeAdapter(dict[str, str])
_CODE = TypeAdapter(dict[str, Code])
_WEIGHTS = "weights"

Content = TypeVar("Content")


def done_digests(batch: PrecisionFolder, kind: Literal["files", "origins"], field: str) -> dict[str, str]:
    """Digests of a batch that is done in a precision.

    Args:
        batch: Its folder.
        kind: Files by relative path, or origins by kind.
        field: The verb that reads them.

    Raises:
        UserError: They are not as the batch wrote them, or are of another batch.
    """
    return _read(batch, kind, _DIGESTS, field)


def done_code(batch: PrecisionFolder, field: str) -> dict[str, Code]:
    """The code, by name, of a batch that is done in a precision. Raises `UserError` as `done_digests`."""
    return _read(batch, "code", _CODE, field)


def _read(batch: PrecisionFolder, kind: str, expected: TypeAdapter[Content], field: str) -> Content:
    try:
        content = read_sealed(batch.files)
        # Strict as JSON is, which has lists in place of tuples.
        own = expected.validate_json(json.dumps(content[kind]), strict=True)
        of_this_batch = content["batch"] == place(batch)
    except (OSError, ValueError, KeyError) as error:
        raise changed(field, batch.files) from error
    if not of_this_batch:
        raise changed(field, batch.files)
    return own


def place(batch: PrecisionFolder) -> str:
    """Case, batch and precision of a folder, whose files are those of no other."""
    return "/".join(batch.path.parts[-3:])


def changed(field: str, path: Path) -> UserError:
    """The refusal of a file that is no longer as the run wrote it."""
    return UserError(
        field, str(path), "is not as the run wrote it", "restore the file, or run again into a new folder"
    )


def origins(batch: BatchFolder) -> dict[str, str]:
    """Digests of the weights and arrays of a batch as its folder holds them. Raises `UserError`."""
    arrays = {kind: load(path).digest for kind, path in batch.arrays.items() if path.exists()}
    return {_WEIGHTS: declared_digest(batch.case.weights), **arrays}


def require_same_weights(folder: CaseFolder, digest: str, checkpoint: Path | None) -> None:
    """Refuse a resumed run with other weights than it began with. A new run has none to compare.

    Args:
        folder: Folder of the case.
        digest: Digest of the weights as they are made now.
        checkpoint: The file that they are from; None for those of a seed, or the model's own.

    Raises:
        UserError: The weights are others, or their files in the folder are.
    """
    present = present_digests(folder.weights)
    ran_on = {done_digests(batch, "origins", "resume").get(_WEIGHTS) for batch in folder.done()}
    # A file that cannot be read is damaged, and does not tell which weights the run began with.
    if (ran_on or set(present.values()) - {None}) - {digest}:
        if checkpoint is not None:
            problem = "has changed since the run began"
            raise UserError("--weights", str(checkpoint), problem, "restore it, or begin again")
        problem = "has other weights than those that the run began with"
        fix = "restore what its weights depend on, or begin again"
        raise UserError("weights", folder.path.name, problem, fix)
    for path, present_digest in present.items():
        if present_digest != digest:
            raise changed("resume", path)


def require_same_batch(folder: BatchFolder, arrays: Mapping[str, CaseInputs], data: Path | None) -> None:
    """Refuse a resumed run whose batch has other arrays than it began with. A new run has none to compare.

    Args:
        folder: Folder of the batch.
        arrays: The arrays as they are made now, by the kinds of `BatchFolder.arrays`.
        data: The file that they are from; None for those that the case draws.

    Raises:
        UserError: The arrays are others, or their files in the folder are.
    """
    digests = {kind: inputs.digest for kind, inputs in arrays.items()}
    present = {kind: _present_digest(path) for kind, path in folder.arrays.items() if path.exists()}
    ran_on = [done_digests(batch, "origins", "resume") for batch in folder.done()]
    if ran_on:
        same = all(digests == {kind: of[kind] for kind in of if kind != _WEIGHTS} for of in ran_on)
    else:
        # A file that cannot be read is damaged, and does not tell which arrays the run began with.
        same = all(digest in (None, digests.get(kind)) for kind, digest in present.items())
    if not same:
        name = f"batch {folder.number} of {folder.case.path.name}"
        if data is not None:
            problem = f"has changed since the run began: {name} differs"
            raise UserError("--data", str(data), problem, "restore it, or begin again")
        problem = "differs from the one that the run began with"
        fix = "restore what make_inputs depends on, or begin again"
        raise UserError("inputs", name, problem, fix)
    for kind, digest in present.items():
        if digest != digests.get(kind):
            raise changed("resume", folder.arrays[kind])


def _present_digest(path: Path) -> str | None:
    """The digest of a file of arrays; None for a damaged one."""
    try:
        return load(path).digest
    except UserError:
        return None
