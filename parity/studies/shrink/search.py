"""A greedy search for the smallest case in which a module or the whole model still fails.

Every size of a case (`Case.sizes`) may shrink: a number to 1, to its half or by one, a list by an element. A
smaller case counts if a module of the same class still fails on its own. The search ends when no size can
shrink. It skips sizes that the case refuses.

Where every module is right on its own, the code between the modules is wrong, or errors add up. Then the same
output of the whole model must fail. A folder reproduces one call. It cannot show a failure of several runs,
such as a leak of padding or an appended item.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from parity.base.errors import UserError
from parity.base.interruption import raisable
from parity.base.precision import Precision
from parity.base.trees import map_tree
from parity.capture.captures import ModuleCall, TensorKey
from parity.capture.names import TapName
from parity.capture.values import storable
from parity.case import Case
from parity.execution.errors import error_text
from parity.in_process import CleanRun
from parity.runners.tripy.pairing import Inside
from parity.runners.tripy.runner import TripyRunner
from parity.verdict.axes import aligned
from parity.verdict.comparison import compare
from parity.verdict.evidence import Evidence
from parity.verdict.judgement import TapJudgement
from parity.verdict.result_names import comparable, names_in_reference
from parity.verdict.rule import Verdict


@dataclass(frozen=True)
class Failure:
    """A module of the port that fails on its own, or the whole model, with the evidence.

    Attributes:
        run: The case, its inputs and weights, the reference's run and the oracle.
        call: The failing call; the model's own has the path "".
        inputs: The call's tensors.
        result: The port's own name of the failing tensor: its place in the module's result as of `TapName`,
            or the tap of the model's output.
        inside: The form of the call's arguments in the port, as of `TripyModules.inside`.
        row: The failing tap with its verdict.
        oracle: The right tensor, float64.
        port: The port's tensor.
    """

    run: CleanRun
    call: ModuleCall
    inputs: Mapping[str, torch.Tensor]
    result: str
    inside: Inside
    row: TapJudgement
    oracle: torch.Tensor
    port: torch.Tensor

    @property
    def case(self) -> Case:
        return self.run.case

    @property
    def evidence(self) -> Evidence:
        return self.run.evidence

    @property
    def verdict(self) -> Verdict:
        """The failing verdict, of a module alone or of an output of the whole model."""
        verdict = self.row.isolated if self.call.path else self.row.accumulated
        assert verdict is not None
        return verdict

    def describe(self, original: Case) -> str:
        """The failing call and the reduced sizes, in words."""
        before, after = original.sizes(), self.case.sizes()
        sizes = ", ".join(
            f"{name.split('.')[-1]} {_shown(value)}"
            for name, value in after.items()
            if value != before.get(name)
        )
        name = f"{self.call.path or f'{self.row.tap} of the whole model'} ({self.call.kind})"
        return f"{name} still fails in {self.case.name} with {sizes or 'no size smaller'}"


def shrink(case: Case, precision: Precision, progress: Callable[[str], None]) -> Failure:
    """Search the smallest case in which the first failure of a case still occurs.

    Args:
        case: The failing case.
        precision: The tested precision.
        progress: Called with the current attempt in words.

    Raises:
        UserError: Nothing fails, or one call cannot show the failure.
    """
    run = CleanRun(case, precision)
    failure = _module(run, None) or _model(run, None)
    if failure is None:
        raise UserError("shrink", f"{case.name} {precision.name}", *_nothing_to_shrink(run))
    if failure.call.path:
        search, same = _module, failure.call.kind
    else:
        search, same = _model, failure.row.tap
    shrunk = True
    while shrunk:
        shrunk = False
        for field, value in _smaller(failure.case):
            progress(f"{failure.call.path or failure.row.tap}: {field} {value}")
            try:
                smaller = search(CleanRun(failure.case.with_sizes({field: value}), precision), same)
            except UserError:
                continue
            if smaller is not None:
                failure, shrunk = smaller, True
                break
    return failure


def _smaller(case: Case) -> Iterator[tuple[str, Any]]:
    """Sizes of a case by name with smaller values, the smallest first."""
    for name, value in case.sizes().items():
        if isinstance(value, int):
            sizes = dict.fromkeys((1, value // 2, value - 1))
            yield from ((name, size) for size in sizes if 0 < size < value)
        elif len(value) > 1:
            yield from ((name, [*value[:at], *value[at + 1 :]]) for at in reversed(range(len(value))))


def _shown(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _module(run: CleanRun, kind: str | None) -> Failure | None:
    """The first module that fails on its own; of the class `kind` only, unless it is None.

    The port runs its modules alone. The reference's results stand for all other results.
    """
    port = TripyRunner()
    port.load(run.case, run.precision, run.weights)
    # It tells the form in which modules receive their arguments. Without it they get the reference's.
    with contextlib.suppress(*raisable()):
        port.run_tapped(run.arrays)
    calls = [
        call
        for call in run.reference.calls
        if kind in (None, call.kind) and call.kind not in run.evidence.gaps
    ]
    alone, problems = run.run_isolated(port, calls)
    names = names_in_reference(run.evidence, alone)
    own = {names.get(tap, tap): tap for tap in alone}
    judged = {tap for call in calls for tap in call.outputs}
    tensors = {tap: tensor for tap, tensor in run.reference.tensors.items() if tap not in judged}
    tensors |= {tap: alone[name] for tap, name in own.items()}
    results = run.reference_results(isolated=tensors, isolated_problems=problems)
    comparison = compare(run.evidence, aligned(run.evidence, results))
    # A module that raises or returns another shape needs no small case.
    row = next((r for r in comparison.taps if r.tap in own and _has_wrong_numbers(r.isolated)), None)
    if row is None:
        return None
    call = run.evidence.kinds[row.tap]
    return Failure(
        run,
        call,
        inputs=run.reference.call_inputs,
        result=TapName.parse(own[row.tap]).output,
        inside=port.inside(call),
        row=row,
        oracle=run.evidence.oracle_isolated[row.tap],
        port=tensors[row.tap],
    )


def _model(run: CleanRun, output: str | None) -> Failure | None:
    """The first output of the whole model that fails; only `output`, unless it is None."""
    port = TripyRunner()
    port.load(run.case, run.precision, run.weights)
    try:
        outputs, tapped = port.run(run.arrays), port.run_tapped(run.arrays).tensors
    except raisable():
        return None
    # The tapped run shows the rows that depend on a flipped element.
    names = names_in_reference(run.evidence, tapped)
    tapped = {names.get(tap, tap): tensor for tap, tensor in tapped.items()}
    results = comparable(run.evidence, run.reference_results(untapped=outputs, tapped=tapped))
    for row in compare(run.evidence, results).taps:
        is_asked = row.tap in results.untapped and output in (None, row.tap)
        if not (is_asked and _has_wrong_numbers(row.accumulated)):
            continue
        call, inputs = _entry(run, row.tap)
        return Failure(
            run,
            call,
            inputs=inputs,
            result=results.numbered.get(row.tap, row.tap),
            inside={},
            row=row,
            oracle=run.evidence.oracle[row.tap],
            port=results.untapped[row.tap],
        )
    return None


def _has_wrong_numbers(verdict: Verdict | None) -> bool:
    return verdict is not None and not verdict.passed and verdict.checked > 0


def _entry(run: CleanRun, output: str) -> tuple[ModuleCall, dict[str, torch.Tensor]]:
    """The call of the whole model, and its inputs."""
    inputs: dict[str, torch.Tensor] = {}

    def keyed(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return storable(leaf)
        key = f"argument.{len(inputs)}"
        inputs[key] = torch.tensor(leaf)
        return TensorKey(key)

    kwargs = map_tree(run.case.entry_arguments(run.arrays), keyed)
    kind = type(run.case.build_reference()).__name__
    return ModuleCall("", output, kind, [], kwargs, (output,), run.case.entry), inputs


def _nothing_to_shrink(run: CleanRun) -> tuple[str, str]:
    """Problem and fix for a case in which no module and no output fails."""
    report = "read the report of `run`"
    try:
        comparison = run.judge("tripy")
    except raisable() as error:
        return f"raises as a whole, which needs no smaller case ({error_text(error)})", report
    diagnosis = comparison.diagnosis
    if diagnosis.kind == "none":
        return "passes: no module and no output fails", "name a case and a precision in which one does"
    row = comparison.tap(diagnosis.tap)
    if row is not None and any(not own.passed and not own.checked for own in row.verdicts.values()):
        return f"fails without a wrong number, which needs no smaller case ({diagnosis.text})", report
    return (
        f"fails in no module on its own and in no output, so no single call shows it ({diagnosis.text})",
        f"{report}: this shows when several runs are compared",
    )
