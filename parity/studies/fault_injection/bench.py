"""One case in one precision, run once without a fault: the basis for judging its faults.

The batches are those of the case's plan, in order. A fuzzed set stands beside it: batches of plans with other
seeds and batch sizes. They detect no fault, and a fault without an effect has none on them either.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from parity.base.errors import UserError
from parity.base.precision import Precision
from parity.capture.names import TapName
from parity.capture.tripy_hooks import named_modules
from parity.case import Case
from parity.coverage.questions import Coverage, Kind, excuse_of
from parity.coverage.source import port_code
from parity.inputs.arrays import NamedInputs, make_inputs
from parity.inputs.weights import case_weights, rounded
from parity.runners.tripy.runner import TripyRunner
from parity.studies.fault_injection.batch import BatchBench
from parity.studies.fault_injection.faults import Fault
from parity.studies.fault_injection.handwritten import Edit, handwritten
from parity.studies.fault_injection.mutation import Mutation, mutations
from parity.studies.fault_injection.sites import Watch
from parity.studies.fault_injection.weight_faults import WeightFault, weight_faults

PLAIN = (bool, int, float, str, tuple, type(None))
"""Types of attributes that describe the construction of a module."""
FUZZED = 3
"""Number of batches in the fuzzed set."""
LARGEST_SEED = 1 << 20


class Bench(BatchBench):
    """A case in a precision, its typical batch run once without a fault.

    Raises:
        UserError: The port fails without a fault.
    """

    def __init__(self, case: Case, precision: Precision) -> None:
        typical, *self._planned = make_inputs(case).batches
        weights, _ = case_weights(case)
        stale, _ = case_weights(case.with_overrides(seed=case.seed + 1))
        self.stale = rounded(stale, precision.dtype)
        self._sources = port_code(case).modules
        self._building, self._running = Watch(self._sources), Watch(self._sources)
        port = TripyRunner()
        with self._building.on({}):
            port.load(case, precision, rounded(weights, precision.dtype))
        self._modules = dict(named_modules(port.model))
        self._constructions = _constructions(port.model, self._modules)
        watching = self._running.on(self._modules)
        super().__init__(case, precision, typical.name, typical.inputs.arrays, weights, port, watching)

    def batches(self) -> Iterator[Sequence[BatchBench]]:
        """All batches of the plan in two groups: this one, then the others, which first run without a fault.

        The next group is taken while no fault is applied.
        """
        yield (self,)
        yield self._others

    def plan(self) -> list[BatchBench]:
        """All batches of the plan, this one first."""
        return [self, *self._others]

    @functools.cached_property
    def _others(self) -> list[BatchBench]:
        return self._runs_of(self._planned)

    @functools.cached_property
    def fuzzed(self) -> list[BatchBench]:
        """Batches of other seeds, batch sizes and shapes, the same in every campaign."""
        rng = np.random.default_rng([0xF022, self.case.seed])
        drawn: list[NamedInputs] = []
        while len(drawn) < FUZZED:
            size = int(rng.integers(1, 2 * self.case.batch_size + 1))
            seed = int(rng.integers(LARGEST_SEED))
            try:
                batches = make_inputs(self.case.with_overrides(seed=seed, batch_size=size)).batches
            except UserError:
                continue  # a batch size that the case refuses
            batch = batches[rng.integers(len(batches))]
            name = f"{batch.name}, seed {seed}, batch size {size}"
            drawn.append(NamedInputs(name, "fuzzed", batch.inputs))
        return self._runs_of(drawn)

    def _runs_of(self, batches: list[NamedInputs]) -> list[BatchBench]:
        """The batches, run without a fault by a port of their own, which then gets the faults of this one."""
        port = TripyRunner()
        port.load(self.case, self.precision, self.weights)
        modules = dict(named_modules(port.model))
        runs = []
        for batch in batches:
            arrays, watching = batch.inputs.arrays, self._running.on(modules)
            run = BatchBench(self.case, self.precision, batch.name, arrays, self.weights, port, watching)
            run.port = self.port
            runs.append(run)
        return runs

    @functools.cached_property
    def coverage(self) -> Coverage:
        """The coverage of the port by the batches of the plan and of the fuzzed set."""
        coverage = Coverage()
        port = TripyRunner()
        port.load(self.case, self.precision, self.weights)
        for batch in (*self.plan(), *self.fuzzed):
            coverage.update(port.coverage(batch.arrays, batch.reference))
        return coverage

    def not_asked(self, fault: Fault) -> str:
        """An outcome at the place of a fault in the source that no batch asks; empty if all are asked."""
        if not isinstance(fault, (Mutation, Edit)):
            return ""
        first, last = fault.lines
        for question, missing in self.coverage.missing():
            is_there = question.module == fault.module and first <= question.line <= last
            if is_there and question.kind in (Kind.OUTCOME, Kind.BRANCH):
                for answer in missing:
                    if not excuse_of(question.identity(answer), self.case.cannot_be_asked()):
                        return f"no batch asks line {question.line}: `{question.text}` {answer}"
        return ""

    def name_of(self, fault: Fault) -> str:
        """`Finding.identity` of the fault's finding."""
        return f"{self.case.name} | {self.precision.name} | {fault.identity}"

    def faults(self) -> list[Fault]:
        """Every fault whose place this case's typical batch reaches, and all faults by hand of its family."""
        return [
            *weight_faults(self.weights, self.stale, self.precision),
            *(mutation for mutation in self._mutations if self.is_reached(mutation)),
            *(edit for edit in self._by_hand() if self._is_mine(edit)),
        ]

    def faults_of_the_suite(self) -> list[Edit]:
        """Faults by hand in the suite itself, which are in no module of the port; see `HarnessBench`."""
        return [edit for edit in self._by_hand() if edit.in_harness]

    def unreached(self) -> list[Fault]:
        """Faults of the source at lines that the case does not reach.

        They are mutations in functions that the case enters.
        """
        entered = {mutation.target for mutation in self._mutations if self.is_reached(mutation)}
        return [one for one in self._mutations if one.target in entered and not self.is_reached(one)]

    def modules_by_hand(self) -> set[str]:
        """Import paths of the modules with faults by hand of the case's family."""
        return {edit.module for edit in self._by_hand() if edit.family and edit.family == self.case.family}

    def _by_hand(self) -> Iterator[Edit]:
        for catalogue in self.case.fault_catalogues:
            yield from handwritten(catalogue)

    @functools.cached_property
    def _mutations(self) -> list[Mutation]:
        numbers: dict[str, float] = {}
        for attributes in self._constructions.values():
            numbers |= {
                name: value
                for name, value in attributes.items()
                if isinstance(value, (int, float)) and not isinstance(value, bool)
            }
        return mutations(self._sources, numbers)

    def is_reached(self, fault: Mutation | Edit) -> bool:
        """Whether a forward of the port, or its construction, runs a line of the fault."""
        places = (watch.of(fault.module, fault.lines) for watch in (self._running, self._building))
        return any(places)

    def _is_mine(self, edit: Edit) -> bool:
        """Whether a fault by hand is for this case's port."""
        if edit.case:
            return edit.case == self.case.name
        return bool(edit.family) and edit.family == self.case.family

    def homes(self, fault: Fault) -> set[str]:
        """Paths of the modules that contain the fault, while the port is loaded with it."""
        if isinstance(fault, WeightFault):
            return {self._owner(name) for name in fault.names}
        if isinstance(fault, Edit) and fault.case:
            return self._running.of(fault.module, fault.lines) | {str(TapName.parse(fault.named).module_call)}
        assert isinstance(fault, (Mutation, Edit))
        homes = set(self._running.of(fault.module, fault.lines))
        if self._building.of(fault.module, fault.lines):
            now = _constructions(self.port.model, dict(named_modules(self.port.model)))
            changed = {path for path in now if now[path] != self._constructions.get(path)}
            homes |= changed or ({""} if not homes else set())
        if isinstance(fault, Edit):
            homes |= paths_of_class(self.port.model, fault.of_class)
        return homes

    def _owner(self, parameter: str) -> str:
        """The innermost called module with the parameter; "" for the model's own."""
        called = {call.path for call in self.reference.calls}
        parts = parameter.split(".")
        paths = [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
        return next((path for path in paths if path in called), "")


def paths_of_class(model: Any, name: str) -> set[str]:
    """Paths of the modules of a class with this name, "" for the model itself."""
    modules = {"": model, **dict(named_modules(model))}
    return {
        path for path, module in modules.items() if name in {base.__name__ for base in type(module).__mro__}
    }


def _constructions(model: Any, modules: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The construction of each module by path: its class, plain attributes, and children."""
    constructions = {}
    for path, module in {"": model, **modules}.items():
        attributes = {name: value for name, value in vars(module).items() if isinstance(value, PLAIN)}
        children = {name: type(child).__name__ for name, child in module.named_children()}
        constructions[path] = attributes | {"class": type(module).__name__, "children": children}
    return constructions
