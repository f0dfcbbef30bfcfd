"""The port on jagged rows, with the fused attention as a plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from parity.base.precision import Precision
from parity.base.trees import map_tree
from parity.capture.captures import ModuleCall, TensorKey, tensor_leaves
from parity.capture.tripy_hooks import is_tripy_tensor
from parity.case import Case, Form
from parity.runners.forms import form_of
from parity.runners.tripy.runner import Compiled, TripyRunner, mlir_tensorrt, tp


class TripyJaggedRunner(TripyRunner):
    """The port's fused form, its results padded so that taps compare with the dense ones."""

    appends = False
    case: Form

    def __init__(self) -> None:
        super().__init__()
        self._arrays: Mapping[str, np.ndarray] = {}

    def label(self) -> str:
        native = not getattr(mlir_tensorrt, "__portable__", False)
        kernel = "Triton kernel" if native or torch.cuda.is_available() else "the kernel's plain PyTorch form"
        return f"{super().label()} jagged, {kernel}"

    def load(self, case: Case, precision: Precision, weights: Mapping[str, torch.Tensor]) -> None:
        super().load(form_of(case, "tripy_jagged"), precision, weights)

    def can_run(self, call: ModuleCall) -> bool:
        return super().can_run(call) and call.kind not in self.case.computed_inside

    def _run_entry(self, arrays: Mapping[str, np.ndarray], function: Callable) -> dict[str, torch.Tensor]:
        return self.case.pad_taps(super()._run_entry(arrays, function), arrays)

    def run_call(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]
    ) -> dict[str, torch.Tensor]:
        self._arrays = arrays
        return self.case.pad_taps(super().run_call(call, inputs, arrays), arrays)

    def _call(self, call: ModuleCall, inputs: Mapping[str, torch.Tensor]) -> tuple[Compiled, Any]:
        if call.path not in self._modules:
            raise LookupError(f"the port has no module {call.path}")
        module = self._modules[call.path]

        def fetch(leaf: Any) -> Any:
            return self._host(inputs[leaf.key]) if isinstance(leaf, TensorKey) else leaf

        args, kwargs = self.case.module_arguments(
            call.path,
            map_tree(call.args, fetch),
            map_tree(call.kwargs, fetch),
            self._arrays,
            self._modules,
        )
        # A bias or mask is no input of the graph: what it holds is in the graph, as in the model's.
        held = {name: value for name, value in kwargs.items() if isinstance(value, tp.Module)}
        arguments = {"args": args, "kwargs": {name: kwargs[name] for name in kwargs if name not in held}}

        def function(arguments: dict, taps: dict[str, tp.Tensor]) -> dict[str, tp.Tensor]:
            result = module(*arguments["args"], **arguments["kwargs"], **held)
            return {call.tap + suffix: tensor for suffix, tensor in tensor_leaves(result, is_tripy_tensor)}

        return self._compiled(call.tap, function, arguments), arguments
