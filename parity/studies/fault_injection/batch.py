"""One batch of a case in one precision, run once without a fault: the basis for judging its faults on it."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch

from parity.base.errors import UserError
from parity.base.precision import PRECISIONS, Precision
from parity.capture.captures import ModuleCall
from parity.case import Case
from parity.coverage.source import swapped
from parity.in_process import CleanRun
from parity.runners.tripy.runner import TripyRunner
from parity.studies.fault_injection.faults import Fault
from parity.studies.fault_injection.handwritten import Edit
from parity.studies.fault_injection.mutation import Mutation
from parity.studies.fault_injection.weight_faults import WeightFault
from parity.verdict.comparison import compare

WIDEST = PRECISIONS["fp32"]
"""The widest precision of Tripy. Changes of the computed function are measured in it."""

Norms = tuple[float, float]
"""A relative distance in the Euclidean norm and in that of the largest element."""
Tap = tuple[bool, str]
"""Whether a module ran alone, and the tap; for a check, False and its name."""


class BatchBench(CleanRun):
    """One batch, run once without a fault.

    Args:
        case: The case.
        precision: The tested precision.
        name: Name of the batch.
        arrays: The batch.
        weights: Float32 weights.
        port: The runner that gets the faults, loaded without one.
        watching: A context for the runs of the port.

    Attributes:
        name: Name of the batch.
        port: The runner that gets the faults.
        clean, clean_comparison: Results without a fault, and their verdicts.

    Raises:
        UserError: The port fails without a fault.
    """

    def __init__(
        self,
        case: Case,
        precision: Precision,
        name: str,
        arrays: Mapping[str, np.ndarray],
        weights: Mapping[str, torch.Tensor],
        port: TripyRunner,
        watching: contextlib.AbstractContextManager[None],
    ) -> None:
        super().__init__(case, precision, arrays, weights)
        self.name = name
        self.port = port
        with watching:
            self.clean = self.results(port)
        self.clean_comparison = compare(self.evidence, self.clean)
        diagnosis = self.clean_comparison.diagnosis
        if diagnosis.kind != "none":
            raise UserError(
                "self-test",
                f"{case.name} {precision.name}",
                f"fails without a fault in batch {name!r} ({diagnosis.text})",
                "make the suite pass first",
            )

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
        """Errors of a loaded port against the oracle: the calls alone, and the whole model.

        A module of one side alone has none.
        """
        evidence = self.evidence
        errors = {}
        for call in filter(port.can_run, calls):
            for name, tensor in port.run_call(call, self.reference.call_inputs, self.arrays).items():
                errors[True, name] = self.distance(name, tensor, evidence.oracle_isolated[name])
        for name, tensor in port.run_tapped(self.arrays).tensors.items():
            if name in evidence.oracle:
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
