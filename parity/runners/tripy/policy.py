"""The port under a policy: each module in a precision of its own, by casts in the graph, and quantised ones.

The port itself has the quantised modules: the case builds it with the policy's schemes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from parity.base.precision import PRECISIONS
from parity.base.precision_policy import BASE, Policy
from parity.capture.tripy_hooks import named_modules
from parity.case import Case
from parity.runners.base import Tensors
from parity.runners.tripy.casts import casting, load_parameters
from parity.runners.tripy.compiled import Compiled, DynamicSizes
from parity.runners.tripy.pairing import weights_of_port
from parity.runners.tripy.runner import TripyRunner


class TripyPolicyRunner(TripyRunner):
    """The port under a policy. Its inputs and weights are fp32 in every policy.

    Args:
        policy: Resolved against the port when it is loaded.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._policy = policy
        self.precisions: Mapping[str, str] = {}
        """Names of precisions by path of the module in the reference, once the model is loaded.

        The model's is under the empty path. A module that the port alone has is under its own path."""
        self._of_port: Mapping[str, str] = {}
        """The same by path of the module in the port."""

    def load_policy(self, case: Case, weights: Tensors) -> None:
        """Build the model with float32 `weights`. Raises `UserError` where the policy does not fit it.

        Scales of a policy's schemes follow from a calibration on the case's own inputs.
        """
        if self._policy.schemes:
            case = case.quantised(self._policy.schemes)
            weights = case.calibrated(weights)
        self.load(case, PRECISIONS[BASE], weights)

    def _load_parameters(self, weights: Tensors) -> None:
        paths = {path: self.case.reference_path(path) for path, _ in named_modules(self.model)}
        self.precisions = self._policy.resolve(paths.values())
        self._of_port = {path: self.precisions[own] for path, own in {"": "", **paths}.items()}
        load_parameters(self.model, weights_of_port(self.case, self.model, weights), self._of_port)

    def _compile(self, function: Callable, arguments: Any, dynamic_sizes: DynamicSizes) -> Compiled:
        with casting(self.model, self._of_port) as at_entry:
            return super()._compile(at_entry(function), arguments, dynamic_sizes)
