"""The reference on jagged rows with fused attention, or with kernels for whole layers."""

from __future__ import annotations

from parity.capture.captures import ModuleCall
from parity.runners.torch.eager import TorchGraphs
from parity.runners.torch.jagged import TorchForm


class TorchFusedRunner(TorchForm, TorchGraphs):
    """PyTorch eager with the fused kernel. Modules alone are timed on jagged rows, as in the model."""

    name = "torch_fused"
    kernels = "fused"
    """The form in labels."""

    def label(self) -> str:
        kernel = "Triton kernel" if self.device.type == "cuda" else "the kernel's plain PyTorch form"
        return f"torch {self.kernels} ({kernel}, {self.device.type})"

    def can_run(self, call: ModuleCall) -> bool:
        return super().can_run(call) and call.kind not in self.case.computed_inside


class TorchLayersRunner(TorchFusedRunner):
    """PyTorch eager with kernels for whole layers."""

    name = "torch_layers"
    kernels = "whole layers"
