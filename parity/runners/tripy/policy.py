"""The port under a precision policy: each module in a precision of its own, by casts in the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from parity.base.precision import PRECISIONS
from parity.base.precision_policy import BASE, Policy
from parity.capture.tripy_hooks import named_modules
from parity.case import Case
from parity.runners.tripy.casts import casting, load_parameters
from parity.runners.tripy.runner import Compiled, TripyRunner


class TripyPolicyRunner(TripyRunner):
    """The port under a policy. It is given fp32 inputs and weights, whatever its modules run in.

    Args:
        policy: Resolved against the port when it is loaded.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self._policy = policy
        self.precisions: Mapping[str, str] = {}
        """By path of the module, that of the model under the empty path; known once it is loaded."""

    def load_policy(self, case: Case, weights: Mapping[str, torch.Tensor]) -> None:
        """Build the model with float32 `weights`. Raises `UserError` where the policy does not fit it."""
        self.load(case, PRECISIONS[BASE], weights)

    def _load_parameters(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.precisions = self._policy.resolve(path for path, _ in named_modules(self.model))
        load_parameters(self.model, weights, self.precisions)

    def _compile(self, function: Callable, arguments: Any, dynamic_sizes: Mapping[int, int]) -> Compiled:
        with casting(self.model, self.precisions) as at_entry:
            return super()._compile(at_entry(function), arguments, dynamic_sizes)
