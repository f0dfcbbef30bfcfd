"""PyTorch's process-wide switches for products and convolutions on a GPU, set while a plan is queued."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

_FP32: tuple[Any, ...] = (torch.backends.cuda.matmul, getattr(torch.backends.cudnn, "conv"))  # noqa: B009
_REDUCTIONS = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


class MatrixPrecision:
    """A context in which sums are accumulated in float32, and factors are rounded to TF32 only if allowed.

    cuDNN adds in a fixed order: repeated convolutions have the same bits.

    Work that is queued inside keeps the precision, because the switches choose kernels. The exit restores the
    switches.
    """

    def __init__(self, allow_tf32: bool):
        self._fp32 = "tf32" if allow_tf32 else "ieee"
        self._saved: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> None:
        for switches in _FP32:
            self._set(switches, "fp32_precision", self._fp32, switches.fp32_precision)
        matmul = torch.backends.cuda.matmul
        for name in _REDUCTIONS:
            # Newer versions of PyTorch pair the switch with one for split-K, which a plain bool would reset.
            split_k = getattr(matmul, f"{name}_split_k", True)
            before = getattr(matmul, name)
            self._set(matmul, name, False, before if split_k else (before, split_k))
        self._set(torch.backends.cudnn, "deterministic", True, torch.backends.cudnn.deterministic)

    def _set(self, owner: Any, name: str, value: Any, before: Any) -> None:
        self._saved.append((owner, name, before))
        setattr(owner, name, value)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        while self._saved:
            owner, name, before = self._saved.pop()
            setattr(owner, name, before)
