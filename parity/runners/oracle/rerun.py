"""Runs of the oracle for the cause of a failure: one call alone, or the model up to one tensor."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from parity.base.precision import Precision
from parity.base.real_numbers import in_real, is_tensor
from parity.capture.arguments import named_arguments
from parity.capture.captures import ModuleCall, tensor_leaves
from parity.capture.names import TapName
from parity.capture.torch_hooks import hooked
from parity.case import Case
from parity.case.pairing import function_of
from parity.runners.oracle.exchanged_weights import Exchange, exchanges, taken_from_others
from parity.runners.oracle.float64 import Float64Runner


class Rerun:
    """Runs the oracle on a batch again. The first run builds the model.

    Args:
        case: The case.
        precision: The tested precision.
        weights: The weights in any precision.
        arrays: The batch's inputs.

    Attributes:
        running: Paths of the modules whose code runs, the innermost one last.
    """

    def __init__(
        self,
        case: Case,
        precision: Precision,
        weights: Callable[[], Mapping[str, torch.Tensor]],
        arrays: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._case, self._precision, self._weights = case, precision, weights
        self._arrays = functools.cache(arrays)
        self.running: list[str] = []

    @functools.cached_property
    def _runner(self) -> Float64Runner:
        oracle = Float64Runner()
        oracle.load(self._case, self._precision, self._weights())
        return oracle

    def call(self, call: ModuleCall, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The results of one call alone, by tap, without rounding samples."""
        self.running.clear()
        with hooked(self._runner.model, lambda path, *_: self.running.append(path), self._leave):
            return self._runner.run_call(call, inputs, self._arrays(), whole=False)

    def weights_exchanged(self, path: str) -> dict[str, Exchange]:
        """Exchanges of the weights of the module at a path, also with those of others, by their words."""
        modules = self._runner.modules()
        return exchanges(modules[path]) | taken_from_others(modules, path)

    def _leave(self, *_: Any) -> None:
        self.running.pop()

    def inputs(self) -> dict[str, torch.Tensor]:
        """The batch's inputs by name."""
        return {name: torch.tensor(np.asarray(array)) for name, array in self._arrays().items()}

    def until(self, target: str, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """An argument or a result of a call, or an output of the entry, by its name as a tap.

        The run ends where the call of an argument begins, or the call of a result ends.

        Raises:
            KeyError: The model makes no such call or output.
        """
        name = TapName.parse(target)
        is_result = not (name.argument or name.is_output_of(self._case.entry))
        calls: Counter[str] = Counter()

        def before(path: str, args: tuple, kwargs: dict) -> None:
            if name.argument and (path, calls[path]) == (name.path, name.call):
                function = function_of(self._runner.modules()[path])
                leaves = {argument.name: leaf for argument, leaf in named_arguments(function, args, kwargs)}
                raise _Reached(in_real(leaves[name.argument]))
            self.running.append(path)

        def after(path: str, kind: str, result: Any) -> None:
            self._leave()
            if is_result and (path, calls[path]) == (name.path, name.call):
                raise _Reached(in_real(dict(tensor_leaves(result, is_tensor))[name.output]))
            calls[path] += 1

        self.running.clear()
        arrays = {key: tensor.numpy() for key, tensor in inputs.items()}
        try:
            with hooked(self._runner.model, before, after):
                return self._runner.run(arrays)[target]
        except _Reached as reached:
            return reached.tensor


class _Reached(Exception):
    """Ends a run at the tensor that it is for."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.tensor = tensor
