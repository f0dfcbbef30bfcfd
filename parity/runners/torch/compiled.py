"""torch.compile on the dense reference. It fuses modules, so only the model's outputs are compared."""

from __future__ import annotations

import shutil
from typing import Any

import torch

from parity.base.precision import Precision
from parity.case import Case
from parity.case.pairing import entry_of
from parity.runners.base import Tensors, Unavailable
from parity.runners.torch.eager import TorchModel


class TorchCompileRunner(TorchModel):
    """The reference, compiled by inductor."""

    mode = "default"

    def label(self) -> str:
        return f"torch.compile dense (inductor, {self.device.type})"

    def load(self, case: Case, precision: Precision, weights: Tensors) -> None:
        if self.device.type == "cpu" and shutil.which("g++") is None and shutil.which("clang++") is None:
            raise Unavailable("torch.compile needs a C++ compiler on the CPU and none is on the PATH")
        super().load(case, precision, weights)
        torch._dynamo.reset()
        # PyTorch's compiler takes a method, and not a model that overrides `__call__`.
        name = "__call__" if entry_of(self.model, self.case.entry) is self.model else self.case.entry
        self._compiled = torch.compile(getattr(self.model, name), fullgraph=True, mode=self.mode)

    def _entry(self, arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
        return self._outputs(self._compiled(**arguments))


class TorchCompileGraphsRunner(TorchCompileRunner):
    """The same, replayed as CUDA graphs: mode "reduce-overhead"."""

    mode = "reduce-overhead"

    def label(self) -> str:
        return f"torch.compile dense (inductor, CUDA graphs, {self.device.type})"

    def load(self, case: Case, precision: Precision, weights: Tensors) -> None:
        if self.device.type != "cuda":
            raise Unavailable("CUDA graphs need a CUDA device and PyTorch sees none")
        super().load(case, precision, weights)

    def allocates_by_torch(self) -> bool:
        # The allocator does not count the graphs' own memory pool.
        return False
