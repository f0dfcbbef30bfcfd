"""The files of a run's cases besides their captures, and the facts about them that a replay needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from parity.case import CaseReference
from parity.execution.done import require_same_batch, require_same_weights
from parity.execution.folder import BatchFolder, RunFolder
from parity.inputs import weights
from parity.inputs.arrays import CaseInputs, NamedInputs, batches_in, poisoned_inputs, save
from parity.inputs.prepared import PreparedCase


class BatchDescription(BaseModel):
    """The facts about a batch: its name, what it asks in words, the digest of its inputs, who ran it.

    A further batch with more rows has a number, see `NamedInputs`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    purpose: str
    digest: str
    precisions: tuple[str, ...]
    further: Annotated[int, Field(ge=0, strict=True)]


class CaseDescription(BaseModel):
    """The facts about a case that a replay needs besides its captures.

    Attributes:
        case: Import path and arguments of the case.
        precisions: Names of the tested precisions.
        source, weights_source: Origins of the inputs and of the weights.
        weights_digest: Digest of the weights.
        batches: Facts about each batch; those with more rows are last, and only some precisions ran them.
        labels_digests: Digests by batch; empty without observed results.
        counts: Numbers of rows and the like.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    case: CaseReference
    precisions: tuple[str, ...]
    source: str
    weights_source: str
    weights_digest: str
    batches: tuple[BatchDescription, ...]
    counts: dict[str, Annotated[int, Field(ge=0, strict=True)]]
    labels_digests: tuple[str, ...]


def write_prepared(
    prepared: Sequence[PreparedCase], folder: RunFolder, data: Path | None, checkpoint: Path | None
) -> None:
    """Save inputs, poisoned inputs, labels and weights of every case.

    Args:
        prepared: The cases.
        folder: Folder of the run.
        data, checkpoint: The files that the inputs and the weights are from; None for what cases make.

    Raises:
        UserError: The folder cannot be written, or is of a run with other inputs or weights.
    """
    for case in prepared:
        case_folder = folder.case(case.case.name)
        require_same_weights(case_folder, case.weights_digest, checkpoint)
        weights.export(case.weights, case_folder.weights)
        for number, batch in enumerate(case.inputs.batches):
            inputs = batch.inputs
            labels = case.inputs.labels[number] if case.inputs.labels else None
            poisoned = poisoned_inputs(case.case, inputs)
            write_inputs(inputs, poisoned, case_folder.batch(number), labels, data)


def write_inputs(
    inputs: CaseInputs,
    poisoned: CaseInputs | None,
    folder: BatchFolder,
    labels: CaseInputs | None = None,
    data: Path | None = None,
) -> None:
    """Save a batch's inputs, and its poisoned inputs and labels if there are any.

    Raises:
        UserError: The folder cannot be written, or is of a run with another such batch.
    """
    by_kind = {"inputs": inputs, "poisoned": poisoned, "labels": labels}
    arrays = {kind: arrays for kind, arrays in by_kind.items() if arrays is not None}
    require_same_batch(folder, arrays, data)
    for kind, of_kind in arrays.items():
        save(of_kind, folder.arrays[kind])


def described(
    prepared: Sequence[PreparedCase],
    precisions: Sequence[str],
    more_rows: Sequence[Mapping[str, Sequence[NamedInputs]]],
) -> list[CaseDescription]:
    """The facts about every case of a run whose batches are all done, in the order of the run.

    Args:
        prepared: The cases with their plans.
        precisions: Names of the precisions.
        more_rows: For each case, the further batches of a precision by its name.
    """
    return [
        CaseDescription(
            case=case.case.described(),
            precisions=tuple(precisions),
            source=case.inputs.source,
            weights_source=case.weights_source,
            weights_digest=case.weights_digest,
            batches=_batches(case.inputs.batches, precisions, further),
            counts=dict(case.inputs.counts),
            labels_digests=tuple(case.labels_digests),
        )
        for case, further in zip(prepared, more_rows, strict=True)
    ]


def _batches(
    plan: Sequence[NamedInputs], precisions: Sequence[str], further: Mapping[str, Sequence[NamedInputs]]
) -> tuple[BatchDescription, ...]:
    ran = {name: [*batches_in(plan, name, precisions), *further[name]] for name in precisions}
    # A precision that draws n batches draws the first n of all.
    most_drawn = max(further.values(), key=len)
    batches = {batch.name: batch for batch in (*plan, *most_drawn)}
    ran_by = {name: {batch.name for batch in of_precision} for name, of_precision in ran.items()}
    return tuple(
        BatchDescription(
            name=batch.name,
            purpose=batch.purpose,
            digest=batch.inputs.digest,
            precisions=tuple(name for name in precisions if batch.name in ran_by[name]),
            further=batch.further,
        )
        for batch in batches.values()
    )
