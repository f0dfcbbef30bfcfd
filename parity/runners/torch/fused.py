"""The reference with fused attention on jagged rows: the same model in PyTorch with the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parity.base.trees import map_tree
from parity.capture.captures import ModuleCall, TensorKey
from parity.runners.torch.eager import TorchJaggedRunner, TorchRunner
from parity.timing.measure import Replayed


class TorchFusedRunner(TorchJaggedRunner):
    """PyTorch eager with the fused kernel, its results padded so that taps compare with the dense ones."""

    name = "torch_fused"

    def __init__(self) -> None:
        super().__init__()
        self._arrays: Mapping[str, np.ndarray] = {}

    def label(self) -> str:
        kernel = "Triton kernel" if self.device.type == "cuda" else "the kernel's plain PyTorch form"
        return f"torch fused ({kernel}, {self.device.type})"

    def can_run(self, call: ModuleCall) -> bool:
        return super().can_run(call) and call.kind not in self.case.computed_inside

    def run_call(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], arrays: Mapping[str, np.ndarray]
    ) -> dict[str, torch.Tensor]:
        self._arrays = arrays
        return super().run_call(call, inputs, arrays)

    def _call_arguments(self, call: ModuleCall, inputs: Mapping[str, torch.Tensor]) -> tuple[list, dict]:
        def fetch(leaf: Any) -> Any:
            return inputs[leaf.key] if isinstance(leaf, TensorKey) else leaf

        def place(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            return leaf.to(self.device, self.dtype if leaf.is_floating_point() else None, copy=True)

        args, kwargs = map_tree(call.args, fetch), map_tree(call.kwargs, fetch)
        args, kwargs = self.case.module_arguments(call.path, args, kwargs, self._arrays, self._modules)
        return map_tree(args, place), map_tree(kwargs, place)

    def _run_module(
        self, call: ModuleCall, args: list, kwargs: dict, arrays: Mapping[str, np.ndarray]
    ) -> dict:
        return self.case.pad_taps(TorchRunner._run_module(self, call, args, kwargs, arrays), arrays)

    def time_call(self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], repeats: int) -> list[float]:
        # On jagged rows, as in the model: the arguments are in place before the clock starts.
        return TorchRunner.time_call(self, call, inputs, repeats)

    def time_call_replays(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], repeats: int
    ) -> Replayed:
        return TorchRunner.time_call_replays(self, call, inputs, repeats)
