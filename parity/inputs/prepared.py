"""Inputs and weights of all cases of a run, checked before the first runner starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from parity.base.errors import UserError
from parity.case import Case
from parity.case.contract import arguments_of
from parity.case.users_code import of_case
from parity.inputs.arrays import RunInputs, make_inputs
from parity.inputs.weights import case_weights, digest


@dataclass(frozen=True)
class PreparedCase:
    """A case with its inputs and weights.

    Attributes:
        case: The case.
        inputs: All batches and labels.
        weights: The float32 state dict.
        weights_source: Origin of the weights.
    """

    case: Case
    inputs: RunInputs
    weights: Mapping[str, torch.Tensor]
    weights_source: str

    @cached_property
    def weights_digest(self) -> str:
        """Digest of the weights."""
        return digest(self.weights)

    @property
    def labels_digests(self) -> list[str]:
        """Digest of each batch's labels; empty without labels."""
        return [labels.digest for labels in self.inputs.labels]


def prepare(
    cases: Sequence[Case], data: Path | None, checkpoint: Path | None, rows: int | None = None
) -> list[PreparedCase]:
    """The inputs and weights of every case. Cases of one class share the content of the data file.

    Args:
        cases: The cases.
        data: A file of recorded data; None for synthetic inputs.
        checkpoint: Trained weights; None for initial weights.
        rows: See `require_rows`.

    Raises:
        UserError: Two cases share a name, a case refuses the data or the weights, or see `require_rows`.
    """
    require_names(cases)
    read: dict[type[Case], Any] = {}
    if data is not None:
        for case in cases:
            if type(case) not in read:
                with of_case(case, "read"), _named(case, len(cases) > 1):
                    read[type(case)] = case.read(data)
    return [_prepared(case, read.get(type(case)), checkpoint, rows, len(cases) > 1) for case in cases]


def _prepared(
    case: Case, data: Any, checkpoint: Path | None, rows: int | None, among_others: bool
) -> PreparedCase:
    with _named(case, data is not None and among_others):
        inputs = make_inputs(case, data)
    require_rows(case, inputs, rows)
    first, *others = inputs.batches
    arguments = {"inputs": arguments_of(case, first.inputs)}
    # Batches of a plan are small and few. Recorded ones have the same arrays.
    arguments |= {f"plan.{batch.name}": arguments_of(case, batch.inputs) for batch in others if batch.purpose}
    with _named(case, checkpoint is not None and among_others):
        weights = case_weights(case, checkpoint, arguments)
    return PreparedCase(case, inputs, *weights)


@contextmanager
def _named(case: Case, is_needed: bool) -> Iterator[None]:
    """Errors in the block name the case, where a file is for several and one does not take it."""
    try:
        yield
    except UserError as error:
        if not is_needed:
            raise
        raise error.at(case.name) from error


def require_rows(case: Case, inputs: RunInputs, rows: int | None) -> None:
    """Raises `UserError` for a case whose typical batch has other rows than asked for; None asks for none."""
    actual = case.batch_size_of(inputs.typical)
    if rows not in (None, actual):
        problem = f"does not change {case.name}, whose make_inputs gives {actual} rows"
        raise UserError("--batch", rows, problem, "make self.batch_size rows, or leave --batch out")


def require_names(cases: Sequence[Case]) -> None:
    """Raises `UserError` if two cases share a name: their results could not be told apart."""
    names = [case.name for case in cases]
    for name in names:
        if names.count(name) > 1:
            raise UserError("name", name, "is the name of two cases", "give each a name of its own")
