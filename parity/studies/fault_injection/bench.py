"""One case in one precision, run once without a fault: the basis for judging its faults."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from parity.base.errors import UserError
from parity.base.precision import PRECISIONS, Precision
from parity.capture.captures import ModuleCall
from parity.capture.names import TapName
from parity.capture.tripy_hooks import named_modules
from parity.case import Case
from parity.coverage.source import port_modules, swapped
from parity.in_process import CleanRun
from parity.inputs.weights import case_weights, rounded
from parity.runners.tripy.runner import TripyRunner
from parity.studies.fault_injection.faults import Fault
from parity.studies.fault_injection.handwritten import Edit, handwritten
from parity.studies.fault_injection.mutation import Mutation, mutations
from parity.studies.fault_injection.sites import Watch
from parity.studies.fault_injection.weight_faults import WeightFault, weight_faults
from parity.verdict.comparison import compare

PLAIN = (bool, int, float, str, tuple, type(None))
"""Types of attributes that describe the construction of a module."""
WIDEST = PRECISIONS["fp32"]
"""The widest precision of Tripy. Changes of the computed function are measured in it."""

Norms = tuple[float, float]
"""A relative distance in the Euclidean norm and in that of the largest element."""
Tap = tuple[bool, str]
"""Whether a module ran alone, and the tap; for a check, False and its name."""


class Bench(CleanRun):
    """A case in a precision, run once without a fault.

    Attributes:
        port: The runner that gets the faults.
        clean, clean_comparison: Results without a fault, and their verdicts.

    Raises:
        UserError: The port fails without a fault.
    """

    def __init__(self, case: Case, precision: Precision) -> None:
        super().__init__(case, precision)
        stale, _ = case_weights(case.with_overrides(seed=case.seed + 1))
        self.stale = rounded(stale, precision.dtype)
        self.port = TripyRunner()
        self._sources = port_modules(case)
        self._building, self._running = Watch(self._sources), Watch(self._sources)
        with self._building.on({}):
            self.port.load(case, precision, self.weights)
        modules = dict(named_modules(self.port.model))
        self._constructions = _constructions(self.port.model, modules)
        with self._running.on(modules):
            self.clean = self.results(self.port)
        self.clean_comparison = compare(self.evidence, self.clean)
        diagnosis = self.clean_comparison.diagnosis
        if diagnosis.kind != "none":
            raise UserError(
                "--self-test",
                f"{case.name} {precision.name}",
                f"fails without a fault ({diagnosis.text})",
                "make the suite pass first",
            )

    def name_of(self, fault: Fault) -> str:
        """`Finding.identity` of the fault's finding."""
        return f"{self.case.name} | {self.precision.name} | {fault.identity}"

    def faults(self) -> list[Fault]:
        """Every fault of the catalogue that this case reaches."""
        numbers: dict[str, float] = {}
        for attributes in self._constructions.values():
            numbers |= {
                name: value
                for name, value in attributes.items()
                if isinstance(value, (int, float)) and not isinstance(value, bool)
            }
        in_source = [
            mutation
            for mutation in mutations(self._sources, numbers)
            if self._running.of(mutation.module, mutation.lines)
            or self._building.of(mutation.module, mutation.lines)
        ]
        by_hand = (edit for catalogue in self.case.fault_catalogues for edit in handwritten(catalogue))
        return [
            *weight_faults(self.weights, self.stale, self.precision),
            *in_source,
            *(edit for edit in by_hand if edit.case == self.case.name),
        ]

    @contextlib.contextmanager
    def faulty(self, fault: Fault, port: TripyRunner, precision: Precision) -> Iterator[None]:
        """Inside, `port` is loaded with the fault; the weights are those of the tested precision."""
        with contextlib.ExitStack() as stack:
            tensors = self.weights
            if isinstance(fault, WeightFault):
                tensors = fault.apply(self.weights, self.precision.dtype)
            else:
                assert isinstance(fault, (Mutation, Edit))
                stack.enter_context(swapped(fault.module, fault.tree()))
            port.load(self.case, precision, tensors)
            yield

    def homes(self, fault: Fault) -> set[str]:
        """Paths of the modules that contain the fault, while the port is loaded with it."""
        if isinstance(fault, WeightFault):
            return {self._owner(name) for name in fault.names}
        if isinstance(fault, Edit):
            return self._running.of(fault.module, fault.lines) | {str(TapName.parse(fault.named).module_call)}
        assert isinstance(fault, Mutation)
        homes = set(self._running.of(fault.module, fault.lines))
        if self._building.of(fault.module, fault.lines):
            now = _constructions(self.port.model, dict(named_modules(self.port.model)))
            changed = {path for path in now if now[path] != self._constructions.get(path)}
            homes |= changed or ({""} if not homes else set())
        return homes

    def _owner(self, parameter: str) -> str:
        """The innermost called module with the parameter; "" for the model's own."""
        called = {call.path for call in self.reference.calls}
        parts = parameter.split(".")
        paths = [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]
        return next((path for path in paths if path in called), "")

    def reached(self, fault: Fault, homes: set[str]) -> list[ModuleCall]:
        """Calls of the modules that contain the fault and of the modules around them, innermost first."""
        calls = self.reference.calls
        if isinstance(fault, Edit):
            return calls
        return [
            call
            for call in calls
            if any(home == call.path or home.startswith(f"{call.path}.") for home in homes)
        ]

    @functools.cached_property
    def clean_errors_in_widest(self) -> dict[Tap, Norms]:
        """Errors of the port without a fault in `WIDEST`: every call alone, and the whole model."""
        port = TripyRunner()
        port.load(self.case, WIDEST, self.weights)
        return self.errors(port, self.reference.calls)

    def errors(self, port: TripyRunner, calls: Iterable[ModuleCall]) -> dict[Tap, Norms]:
        """Errors of a loaded port against the oracle: the calls alone, and the whole model."""
        evidence = self.evidence
        errors = {}
        for call in calls:
            for name, tensor in port.run_call(call, self.reference.call_inputs, self.arrays).items():
                errors[True, name] = self.distance(name, tensor, evidence.oracle_isolated[name])
        for name, tensor in port.run_tapped(self.arrays).tensors.items():
            errors[False, name] = self.distance(name, tensor, evidence.oracle[name])
        for name, tensor in port.run_incremental(self.arrays).items():
            full = evidence.oracle[evidence.incremental_outputs[name]]
            errors[False, name] = self.distance(name, tensor, full)
        return errors

    def distance(self, name: str, tensor: torch.Tensor, oracle: torch.Tensor) -> Norms:
        """||tensor - oracle|| / ||oracle|| in both norms, over the compared elements of the tap `name`."""
        if tensor.shape != oracle.shape:
            return math.inf, math.inf
        counted = self.evidence.counted(name, tuple(oracle.shape))
        wide, exact = (side.to(torch.float64).numpy()[counted] for side in (tensor, oracle))
        difference = np.abs(wide - exact)
        if not difference.any():
            return 0.0, 0.0
        if not oracle.dtype.is_floating_point or not np.isfinite(difference).all() or not exact.any():
            return math.inf, math.inf
        l2 = np.linalg.norm(difference) / np.linalg.norm(exact)
        return float(l2), float(difference.max() / np.abs(exact).max())


def _constructions(model: Any, modules: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The construction of each module by path: its class, plain attributes, and children."""
    constructions = {}
    for path, module in {"": model, **modules}.items():
        attributes = {name: value for name, value in vars(module).items() if isinstance(value, PLAIN)}
        children = {name: type(child).__name__ for name, child in module.named_children()}
        constructions[path] = attributes | {"class": type(module).__name__, "children": children}
    return constructions
