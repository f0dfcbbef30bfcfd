"""The files of a run's cases besides its captures: inputs, weights, and the facts that a replay needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from parity.base.errors import UserError
from parity.base.files import write_new
from parity.case import CaseReference
from parity.execution.folder import BatchFolder, CaseFolder, RunFolder
from parity.inputs import weights
from parity.inputs.arrays import CaseInputs, NamedInputs, batches_in, poisoned_inputs, save
from parity.inputs.prepared import PreparedCase


class BatchDescription(BaseModel):
    """The facts about a batch: its name, what it asks in words, the digest of its inputs, who ran it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    purpose: str
    digest: str
    precisions: tuple[str, ...]


class CaseDescription(BaseModel):
    """The facts about a case that a replay needs besides its captures.

    Attributes:
        case: Import path and arguments of the case.
        position: Place among the cases of the run, counted from 0.
        precisions: Names of the tested precisions.
        source, weights_source: Origins of the inputs and of the weights.
        weights_digest: Digest of the weights.
        batches: Facts about each batch; those with more rows are last, and only some precisions ran them.
        labels_digests: Digests by batch; empty without observed results.
        counts: Numbers of rows and the like.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    case: CaseReference
    position: int
    precisions: tuple[str, ...]
    source: str
    weights_source: str
    weights_digest: str
    batches: tuple[BatchDescription, ...]
    counts: dict[str, int]
    labels_digests: tuple[str, ...]


@dataclass(frozen=True)
class SavedRun:
    """A saved run that is complete.

    Attributes:
        runners_asked: The runners that the user named.
        cases: Folder and facts of each case, in the order of the run.
    """

    runners_asked: tuple[str, ...]
    cases: tuple[tuple[CaseFolder, CaseDescription], ...]


def write_prepared(prepared: Sequence[PreparedCase], folder: RunFolder) -> None:
    """Save inputs, poisoned inputs, labels and weights of every case.

    Raises:
        UserError: The folder cannot be written, or holds other inputs or weights.
    """
    for case in prepared:
        case_folder = folder.case(case.case.name)
        weights.export(case.weights, case_folder.weights)
        for number, batch in enumerate(case.inputs.batches):
            inputs = batch.inputs
            labels = case.inputs.labels[number] if case.inputs.labels else None
            write_inputs(inputs, poisoned_inputs(case.case, inputs), case_folder.batch(number), labels)


def write_inputs(
    inputs: CaseInputs, poisoned: CaseInputs | None, folder: BatchFolder, labels: CaseInputs | None = None
) -> None:
    """Save a batch's inputs, and its poisoned inputs and labels if there are any."""
    save(inputs, folder.inputs)
    if poisoned is not None:
        save(poisoned, folder.poisoned)
    if labels is not None:
        save(labels, folder.labels)


def write_descriptions(
    prepared: Sequence[PreparedCase],
    precisions: Sequence[str],
    more_rows: Sequence[Mapping[str, Sequence[NamedInputs]]],
    folder: RunFolder,
) -> list[CaseDescription]:
    """Save and return the facts about every case of a run whose batches are all done.

    Args:
        prepared: The cases with their plans.
        precisions: Names of the precisions.
        more_rows: For each case, the further batches of a precision by its name.
        folder: Folder of the run.
    """
    descriptions = [
        CaseDescription(
            case=case.case.described(),
            position=position,
            precisions=tuple(precisions),
            source=case.inputs.source,
            weights_source=case.weights_source,
            weights_digest=weights.digest(case.weights),
            batches=_batches(case.inputs.batches, precisions, further),
            counts=dict(case.inputs.counts),
            labels_digests=tuple(case.labels_digests),
        )
        for position, (case, further) in enumerate(zip(prepared, more_rows, strict=True))
    ]
    for case, description in zip(prepared, descriptions, strict=True):
        path = folder.case(case.case.name).description
        write_new(path, (description.model_dump_json() + "\n").encode())
    return descriptions


def _batches(
    plan: Sequence[NamedInputs], precisions: Sequence[str], further: Mapping[str, Sequence[NamedInputs]]
) -> tuple[BatchDescription, ...]:
    batches = {batch.name: batch for batch in plan}
    ran_by: dict[str, list[str]] = {name: [] for name in batches}
    for precision in precisions:
        for batch in batches_in(plan, precision, precisions):
            ran_by[batch.name].append(precision)
    # A precision that draws n batches draws the first n of all.
    for precision in sorted(further, key=lambda name: -len(further[name])):
        for batch in further[precision]:
            batches[batch.name] = batch
            ran_by.setdefault(batch.name, []).append(precision)
    return tuple(
        BatchDescription(
            name=batch.name,
            purpose=batch.purpose,
            digest=batch.inputs.digest,
            precisions=tuple(name for name in precisions if name in ran_by[batch.name]),
        )
        for batch in batches.values()
    )


def write_runners_asked(runners: Sequence[str], folder: RunFolder) -> None:
    """Save the runners that the user named."""
    write_new(folder.request, (json.dumps({"runners_asked": list(runners)}) + "\n").encode())


def read_saved(folder: RunFolder) -> SavedRun:
    """The facts of a saved run.

    Raises:
        UserError: The folder holds no complete run, or a file is missing or damaged.
    """
    try:
        asked = tuple(json.loads(folder.request.read_text())["runners_asked"])
        cases = [
            (case, CaseDescription.model_validate_json(case.description.read_text()))
            for case in folder.complete_cases()
        ]
        if not cases:
            raise FileNotFoundError("no complete case")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            "replay",
            str(folder.path),
            "holds no complete saved run",
            "give the folder of a run with --save",
        ) from error
    return SavedRun(asked, tuple(sorted(cases, key=lambda case: case[1].position)))
