"""The smallest case in which a module fails as it does in a given one.

Every whole number and every list in a case's model and input is a size that may shrink: to 1, to its half, by
one, or by an element. A smaller case counts if a module of the same class still fails on its own; greedily,
until no size can shrink any more. Cases that are not valid, or that a family cannot judge, are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from configs import CaseConfig, ConfigError, with_fields
from parity.captures import ModuleCall
from parity.compare import Evidence, Results, TapRow, compare
from parity.errors import UserError
from parity.one_process import CleanRun
from parity.precision import Precision
from parity.runners.tripy_runner import TripyRunner

KEPT = ("seed",)
"""Numbers that are no sizes."""


@dataclass(frozen=True)
class Failure:
    """A module of the port that fails on its own, and all that shows it.

    Attributes:
        case: The case that it fails in.
        run: Its inputs and weights, the reference's run and the oracle.
        call: The call that fails.
        row: The tap that fails, with its verdict.
        port: What the port made of it.
    """

    case: CaseConfig
    run: CleanRun
    call: ModuleCall
    row: TapRow
    port: torch.Tensor

    @property
    def evidence(self) -> Evidence:
        return self.run.evidence

    def describe(self, original: CaseConfig) -> str:
        """What fails, and in which sizes it still does."""
        before, after = original.model_dump(), self.case.model_dump()
        sizes = ", ".join(
            f"{name} {_shown(value)}"
            for part in ("input", "model")
            for name, value in after[part].items()
            if value != before[part].get(name)
        )
        what = f"{self.call.path} ({self.call.kind})"
        return f"{what} still fails in {self.case.name} with {sizes or 'no size smaller'}"


def shrink(case: CaseConfig, precision: Precision, progress: Callable[[str], None]) -> Failure:
    """Find what fails in a case, and the smallest case in which the same still fails.

    Raises:
        UserError: Every module is right on its own.
    """
    failure = _failure(case, precision, None)
    if failure is None:
        raise UserError(
            "--shrink",
            f"{case.name} {precision.name}",
            "has no module that fails on its own",
            "run without --shrink, and name a case and a precision in which one does",
        )
    kind = failure.call.kind
    shrunk = True
    while shrunk:
        shrunk = False
        for field, value in _smaller(failure.case):
            progress(f"{failure.call.path}: {field} {value}")
            try:
                candidate = with_fields(failure.case, {field: value})
                found = _failure(candidate, precision, kind)
            except (ConfigError, UserError):
                continue
            if found is not None:
                failure, shrunk = found, True
                break
    return failure


def _smaller(case: CaseConfig) -> Iterator[tuple[str, Any]]:
    """Each size of a case with smaller values for it, the input's first and the smallest first."""
    values = case.model_dump()
    for part in ("input", "model"):
        for name, value in values[part].items():
            field = f"{part}.{name}"
            if isinstance(value, (list, tuple)) and len(value) > 1:
                yield from ((field, [*value[:at], *value[at + 1 :]]) for at in reversed(range(len(value))))
            elif isinstance(value, int) and not isinstance(value, bool) and name not in KEPT:
                tried = dict.fromkeys((1, value // 2, value - 1))
                yield from ((field, size) for size in tried if 0 < size < value)


def _shown(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _failure(case: CaseConfig, precision: Precision, kind: str | None) -> Failure | None:
    """The first module that fails on its own; only classes named `kind`, if one is given.

    Nothing but modules alone is run on the port; the reference's results stand for all others.
    """
    run = CleanRun(case, precision)
    port = TripyRunner()
    port.load(case, precision, run.weights)
    tensors = dict(run.reference.tensors)
    problems: dict[str, str] = {}
    for call in filter(port.can_run, run.reference.calls):
        if kind not in (None, call.kind) or run.evidence.is_gap(call):
            continue
        try:
            tensors |= port.run_call(call, run.reference.call_inputs, run.arrays)
        except Exception as error:  # noqa: BLE001, whatever a module raises is its failure
            problems[call.tap] = f"{type(error).__name__}: {error}"
    same = run.reference.tensors
    results = Results(
        untapped={tap: tensor for tap, tensor in same.items() if tap not in run.evidence.kinds},
        tapped=same,
        isolated=tensors,
        isolated_problems=problems,
        poisoned=same,
        incremental=run.evidence.reference_incremental,
    )
    comparison = compare(run.evidence, results)
    row = next((r for r in comparison.rows if r.isolated is not None and not r.isolated.passed), None)
    # A module that raises, or gives another shape, needs no small case to be seen.
    if row is None or row.isolated is None or row.isolated.checked == 0:
        return None
    return Failure(case, run, run.evidence.kinds[row.tap], row, tensors[row.tap])
