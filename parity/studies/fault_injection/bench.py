"""One case in one precision: all that faults are judged by, made once; and the judging of one fault.

A fault in a module changes what that module gives alone, and what the modules around it give; everything
else that the suite looks at comes from runs of the whole model. `Bench.find` therefore runs the modules that
the fault can reach, innermost first, and judges with `parity.verdict.comparison.compare` after each, with the
clean
port's results in the place of what has not run. The first module that fails alone is the diagnosis whatever
the other results are, so that it can stop there. Where none fails, the whole model runs, as in any run of
the suite. `tests/parity/test_self_test.py` holds this against whole runs.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from parity.base.errors import UserError
from parity.base.precision import Precision
from parity.capture.captures import ModuleCall
from parity.capture.names import TapName
from parity.capture.tripy_hooks import named_modules
from parity.case import Case
from parity.in_process import CleanRun, describe
from parity.inputs.weights import case_weights, rounded
from parity.runners.tripy.runner import TripyRunner
from parity.studies.fault_injection import effects
from parity.studies.fault_injection.faults import Fault, Finding, Outcome
from parity.studies.fault_injection.handwritten import CATALOGUES, Edit, handwritten
from parity.studies.fault_injection.mutation import Mutation, mutations
from parity.studies.fault_injection.sites import Watch
from parity.studies.fault_injection.source import swapped
from parity.studies.fault_injection.weight_faults import WeightFault, weight_faults
from parity.verdict.comparison import Comparison, Results, compare
from parity.verdict.judgement import Diagnosis, TapJudgement

PLAIN = (bool, int, float, str, tuple, type(None))
"""Types of attributes that say how a module was made."""


class Bench(CleanRun):
    """A case in a precision, run once without a fault.

    Attributes:
        port: The runner that gets the faults.
        clean, clean_comparison: Its results without one, and their verdicts.
    """

    def __init__(self, case: Case, precision: Precision) -> None:
        super().__init__(case, precision)
        stale, _ = case_weights(case.with_overrides(seed=case.seed + 1))
        self.stale = rounded(stale, precision.dtype)
        self.port = TripyRunner()
        self._made, self._ran = Watch(), Watch()
        with self._made.on({}):
            self.port.load(case, precision, self.weights)
        modules = dict(named_modules(self.port.model))
        self._built = _made_of(self.port.model, modules)
        with self._ran.on(modules):
            self.clean = self.results(self.port)
        self.clean_comparison = compare(self.evidence, self.clean)
        found = self.clean_comparison.diagnosis
        if found.kind != "none":
            raise UserError(
                "--self-test",
                f"{case.name} {precision.name}",
                f"fails without a fault ({found.text})",
                "make the suite pass first",
            )

    def name_of(self, fault: Fault) -> str:
        """`Finding.identity` of what `find` will return for the fault."""
        return f"{self.case.name} | {self.precision.name} | {fault.identity}"

    def faults(self) -> list[Fault]:
        """Every fault of the catalogue that this case reaches."""
        found: list[Fault] = list(weight_faults(self.weights, self.stale, self.precision))
        numbers: dict[str, float] = {}
        for made in self._built.values():
            numbers |= {
                name: value
                for name, value in made.items()
                if isinstance(value, (int, float)) and not isinstance(value, bool)
            }
        for mutation in mutations(numbers):
            if self._ran.of(mutation.file, mutation.lines) or self._made.of(mutation.file, mutation.lines):
                found.append(mutation)
        by_hand = (edit for catalogue in CATALOGUES for edit in handwritten(catalogue))
        return [*found, *(edit for edit in by_hand if edit.case == self.case.name)]

    @contextlib.contextmanager
    def faulty(self, fault: Fault, port: TripyRunner, precision: Precision) -> Iterator[None]:
        """Inside, `port` is loaded with the fault; the weights are those of the tested precision."""
        with contextlib.ExitStack() as stack:
            tensors = self.weights
            if isinstance(fault, WeightFault):
                tensors = fault.apply(self.weights, self.precision.dtype)
            else:
                assert isinstance(fault, (Mutation, Edit))
                stack.enter_context(swapped(fault.file, fault.tree()))
            port.load(self.case, precision, tensors)
            yield

    @functools.cached_property
    def clean_errors_fp32(self) -> dict[str, float]:
        """See `effects.clean_errors`."""
        return effects.clean_errors(self)

    def find(self, fault: Fault) -> Finding:
        """Put the fault in, judge, and say what became of it."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self.faulty(fault, self.port, self.precision))
            except Exception as error:  # noqa: BLE001, whatever a fault leads the port to raise as it is made
                return self._finding(fault, set(), Outcome.BROKEN, "refused", "", proof=describe(error))
            homes = self._homes(fault)
            results = self._start(reached := self.reached(fault, homes))
            comparison, diagnosis = self._judged(reached, results)
        if diagnosis.kind == "none":
            return self._passed(fault, homes, comparison, results)
        row = comparison.tap(diagnosis.tap)
        return self._finding(
            fault,
            homes,
            Outcome.DETECTED,
            diagnosis.kind,
            diagnosis.tap,
            localised=_is_at_home(diagnosis, row, homes),
            margin=_margin(row),
        )

    def _finding(
        self, fault: Fault, homes: set[str], outcome: Outcome, kind: str, named: str, **facts: Any
    ) -> Finding:
        return Finding(
            case=self.case.name,
            precision=self.precision.name,
            operator=fault.operator,
            target=fault.target,
            detail=fault.detail,
            homes=sorted(homes),
            outcome=outcome,
            kind=kind,
            named=named,
            **{"localised": False} | facts,
        )

    def _homes(self, fault: Fault) -> set[str]:
        """Paths of the modules that the fault is in, while the port is loaded with it."""
        if isinstance(fault, WeightFault):
            return {self._owner(name) for name in fault.names}
        if isinstance(fault, Edit):
            return self._ran.of(fault.file, fault.lines) | {str(TapName.parse(fault.named).module_call)}
        assert isinstance(fault, Mutation)
        homes = set(self._ran.of(fault.file, fault.lines))
        if self._made.of(fault.file, fault.lines):
            built = _made_of(self.port.model, dict(named_modules(self.port.model)))
            changed = {path for path in built if built[path] != self._built.get(path)}
            homes |= changed or ({""} if not homes else set())
        return homes

    def _owner(self, parameter: str) -> str:
        """The innermost module that is called and has the parameter; "" for the model's own."""
        called = {call.path for call in self.reference.calls}
        parts = parameter.split(".")
        paths = [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
        return next((path for path in paths if path in called), "")

    def reached(self, fault: Fault, homes: set[str]) -> list[ModuleCall]:
        """Calls of the modules that the fault is in and of those around them, innermost first."""
        calls = self.reference.calls
        if isinstance(fault, Edit):
            return calls
        return [
            call
            for call in calls
            if any(home == call.path or home.startswith(f"{call.path}.") for home in homes)
        ]

    def _start(self, reached: list[ModuleCall]) -> Results:
        """The clean results, to be replaced by those of what has run with the fault."""
        results = replace(self.clean, isolated=dict(self.clean.isolated), isolated_problems={})
        if any(name in self.evidence.boundary for call in reached for name in call.outputs):
            # What a flipped bucket reaches is read off the tapped run.
            results.tapped = self._try(lambda: self.port.run_tapped(self.arrays).tensors)[0]
        return results

    def _judged(self, reached: list[ModuleCall], results: Results) -> tuple[Comparison, Diagnosis]:
        for call in reached:
            self._rerun(call, results)
            comparison = compare(self.evidence, results)
            if _failed_alone(comparison):
                return comparison, comparison.diagnosis
        return self._judged_whole(results)

    def _rerun(self, call: ModuleCall, results: Results) -> None:
        isolated, problems = dict(results.isolated), dict(results.isolated_problems)
        for name in call.outputs:
            isolated.pop(name, None)
        outputs, errors = self.run_isolated(self.port, [call])
        results.isolated, results.isolated_problems = isolated | outputs, problems | errors

    def _judged_whole(self, results: Results) -> tuple[Comparison, Diagnosis]:
        port, arrays, poisoned = self.port, self.arrays, self.poisoned
        results.tapped, tapped = self._try(lambda: port.run_tapped(arrays).tensors)
        results.incremental, incremental = self._try(lambda: port.run_incremental(arrays))
        results.untapped, untapped = self._try(lambda: port.run(arrays))
        leak = ""
        if poisoned is not None:
            results.poisoned, leak = self._try(lambda: port.run_tapped(poisoned).tensors)
        comparison = compare(self.evidence, results)
        problem = tapped or incremental or untapped or leak
        if problem:
            return comparison, Diagnosis("check", "", f"every module passes on its own, and {problem}")
        return comparison, comparison.diagnosis

    def _try(self, run: Callable[[], dict[str, torch.Tensor]]) -> tuple[dict[str, torch.Tensor], str]:
        try:
            return run(), ""
        except Exception as error:  # noqa: BLE001, what a fault makes the port raise is its result
            return {}, describe(error)

    def _passed(self, fault: Fault, homes: set[str], comparison: Comparison, results: Results) -> Finding:
        """A fault that nobody noticed: is there anything to notice?"""
        effect = effects.of(self, fault, homes, comparison, results)
        margins = [
            v.margin for row in comparison.taps for v in (row.isolated, row.accumulated) if v is not None
        ]
        return self._finding(
            fault,
            homes,
            effect.outcome,
            "none",
            "",
            margin=max((m for m in margins if math.isfinite(m)), default=None),
            effect=effect.size if math.isfinite(effect.size) else None,
            proof=effect.proof,
        )


def _failed_alone(comparison: Comparison) -> bool:
    tap = comparison.diagnosis.tap
    return any(
        row.tap == tap and row.isolated is not None and not row.isolated.passed for row in comparison.taps
    )


def _is_at_home(diagnosis: Diagnosis, row: TapJudgement | None, homes: set[str]) -> bool:
    """Whether the diagnosis names a module that the fault is in.

    Code between the modules has no module to name. Of such a fault the diagnosis must accuse none: every
    module is right on its own, and what it names is where the wrong values arrive.
    """
    if row is None:
        return "" in homes
    alone = row.isolated is not None and not row.isolated.passed
    return row.path in homes if alone else "" in homes or row.path in homes


def _margin(row: TapJudgement | None) -> float | None:
    if row is None:
        return None
    failed = [v for v in (row.isolated, row.accumulated) if v is not None and not v.passed]
    margin = failed[0].margin if failed else math.nan
    return margin if math.isfinite(margin) else None


def _made_of(model: Any, modules: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """How each module was made: its class, its plain attributes, its children, its own parameters' shapes."""
    made = {}
    for path, module in {"": model, **modules}.items():
        facts = {name: value for name, value in vars(module).items() if isinstance(value, PLAIN)}
        children = {name: type(child).__name__ for name, child in module.named_children()}
        made[path] = facts | {"class": type(module).__name__, "children": children}
    return made
