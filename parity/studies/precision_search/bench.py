"""One case on one batch: the error and the cost of an assignment of precisions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from parity.base.precision import PRECISIONS
from parity.base.precision_policy import BASE, Policy
from parity.capture.names import TapName
from parity.case import Case
from parity.in_process import CleanRun
from parity.inputs.weights import rounded
from parity.runners import make_runner
from parity.runners.tripy.pairing import built_port, paired_modules
from parity.runners.tripy.policy import TripyPolicyRunner
from parity.studies.precision_search.cost import Work, count
from parity.verdict.distances import Distance, Oracle
from parity.verdict.evidence import Evidence


@dataclass(frozen=True)
class Evaluation:
    """One assignment, run on the port.

    Attributes:
        precisions: Names of precisions by path of the module.
        error: Largest relative error of any output in either norm; the budget limits it.
        outputs: Distance of each output from the oracle; infinite for an output with NaN or Inf.
        seconds: Modelled cost of the precisions; the module `schemes` has that of schemes.
        taps: Results of the modules; empty without taps.
        schemes: Schemes of quantisation by pattern.
    """

    precisions: Mapping[str, str]
    error: float
    outputs: Mapping[str, Distance]
    seconds: float
    taps: Mapping[str, torch.Tensor] = field(repr=False)
    schemes: Mapping[str, str] = field(default_factory=dict)


class Bench:
    """A case with its inputs, its weights and the runs of the port on them.

    Args:
        case: The case.
        arrays: One batch.
        weights: Float32 weights by name.

    Attributes:
        paths: Paths of the called modules that the port has, too: each can have a precision; "" is the model.
        work: Operations of the model in these modules, for the cost.
        evaluations: Number of runs of the port.
    """

    def __init__(
        self, case: Case, arrays: Mapping[str, np.ndarray], weights: Mapping[str, torch.Tensor]
    ) -> None:
        self.case = case
        self.arrays = arrays
        self.weights = rounded(weights, PRECISIONS[BASE].dtype)
        self.evaluations = 0
        ported = paired_modules(case, built_port(case, PRECISIONS[BASE].dtype))
        self.work = self._count().within(ported)
        self.paths = tuple(self.work.operations)
        self._evidence = self._measure()
        self._known: dict[tuple[tuple[str, ...], bool], Evaluation] = {}

    def _count(self) -> Work:
        half = make_runner("torch")
        half.load(self.case, PRECISIONS["fp16"], self.weights)
        return count(half.model, lambda: half.run(self.arrays))

    def _measure(self) -> Evidence:
        return CleanRun(self.case, PRECISIONS[BASE], self.arrays, self.weights, isolated=False).evidence

    def kinds(self) -> dict[str, str]:
        """Class names of the modules by path."""
        called = {call.path: call.kind for call in self._evidence.reference.calls}
        return {path: kind for path, kind in called.items() if path in self.paths} | {"": "model"}

    def evaluate(self, assignment: Mapping[str, str], tapped: bool = False) -> Evaluation:
        """Run the port under an assignment.

        Args:
            assignment: Precisions by path; fp32 for all other modules.
            tapped: Whether to return the modules' results, too. The outputs then come from the tapped graph.
        """
        full = {path: assignment.get(path, BASE) for path in self.paths}
        key = (tuple(full.values()), tapped)
        if key not in self._known:
            self._known[key] = self.evaluate_policy(Policy.of(full), tapped)
        return self._known[key]

    def evaluate_policy(self, policy: Policy, tapped: bool = False) -> Evaluation:
        """Run the port under a policy. Raises `UserError` for a policy that does not fit the model."""
        runner = TripyPolicyRunner(policy)
        runner.load_policy(self.case, self.weights)
        self.evaluations += 1
        results = runner.run_tapped(self.arrays).tensors if tapped else runner.run(self.arrays)
        prefix = f"{self._evidence.entry}."
        outputs = {
            name: self._distance(name, tensor)
            for name, tensor in results.items()
            if name.startswith(prefix) and tensor.is_floating_point()
        }
        precisions = {path: runner.precisions[path] for path in self.paths}
        return Evaluation(
            precisions=precisions,
            error=max(max(distance.l2, distance.largest) for distance in outputs.values()),
            outputs=outputs,
            seconds=self.work.seconds(precisions),
            taps=results if tapped else {},
            schemes=policy.schemes,
        )

    def _distance(self, name: str, result: torch.Tensor) -> Distance:
        oracle = self._evidence.oracle[name]
        assert oracle.shape == result.shape, f"{name}: {result.shape} for {oracle.shape}"
        values = self._valid(result)
        if not np.isfinite(values).all():
            return Distance(math.inf, math.inf, math.inf)
        return Oracle(self._valid(oracle)).distance(values)

    def _valid(self, tensor: torch.Tensor) -> np.ndarray:
        """(n,) float64, the compared elements."""
        values = tensor.to(torch.float64).numpy()
        keep = self._evidence.mask(values.shape)
        return values.ravel() if keep is None else values[np.broadcast_to(keep, values.shape)]

    def moved(self, path: str, lowered: Evaluation, base: Evaluation) -> float:
        """Relative movement of a module's results between two tapped runs, in the Euclidean norm.

        The empty path stands for the model's outputs; the largest movement of an output counts.
        """
        if path == "":
            return max(self._relative([name], lowered, base) for name in base.outputs)
        names = [name for name in base.taps if TapName.parse(name).path == path]
        return self._relative(names, lowered, base)

    def _relative(self, names: list[str], lowered: Evaluation, base: Evaluation) -> float:
        squares = np.zeros(2)
        for name in names:
            if not base.taps[name].is_floating_point():
                continue
            before, after = (self._valid(run.taps[name]) for run in (base, lowered))
            if not np.isfinite(after).all():
                return math.inf
            squares += (np.square(after - before).sum(), np.square(before).sum())
        return float(np.sqrt(squares[0] / squares[1])) if squares[1] else 0.0
