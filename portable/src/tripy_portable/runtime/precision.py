"""PyTorch's process-wide switches for products and convolutions on a GPU, set while a plan is queued."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch

from tripy_portable.planner import Plan

_CONVOLUTIONS = getattr(torch.backends.cudnn, "conv")  # noqa: B009
_REDUCTIONS = {
    torch.float16: "allow_fp16_reduced_precision_reduction",
    torch.bfloat16: "allow_bf16_reduced_precision_reduction",
}
_ALL_TYPES = (torch.float32, *_REDUCTIONS)


class MatrixPrecision:
    """A context in which sums are accumulated in float32, and factors are rounded to TF32 only if allowed.

    cuDNN adds in a fixed order: repeated convolutions have the same bits.

    Work that is queued inside keeps the precision, because the switches choose kernels. The exit restores the
    switches.
    """

    def __init__(
        self, allow_tf32: bool, products: Iterable[torch.dtype] = _ALL_TYPES, convolves: bool = True
    ):
        """The switches of some work; the others stay, since each takes the host a microsecond.

        Args:
            allow_tf32: whether factors may be rounded to TF32.
            products: types of the matrix products.
            convolves: whether there are convolutions.
        """
        self._fp32 = "tf32" if allow_tf32 else "ieee"
        self._products = torch.float32 in products
        self._reductions = [_REDUCTIONS[dtype] for dtype in products if dtype in _REDUCTIONS]
        self._convolves = convolves
        self._saved: list[tuple[Any, str, Any]] = []

    @classmethod
    def of(cls, plan: Plan, allow_tf32: bool) -> MatrixPrecision | None:
        """The switches of a plan's work; None for a plan without products and convolutions."""
        operations = {step.node.op for step in plan.steps}
        if "opaque_plugin" in operations:
            # A plugin's own products follow the same switches.
            return cls(allow_tf32)
        convolves = not operations.isdisjoint(("convolution", "deconvolution"))
        if not (plan.product_types or convolves):
            return None
        return cls(allow_tf32, plan.product_types, convolves)

    def __enter__(self) -> None:
        matmul = torch.backends.cuda.matmul
        if self._products:
            self._set(matmul, "fp32_precision", self._fp32, matmul.fp32_precision)
        for name in self._reductions:
            # Newer versions of PyTorch pair the switch with one for split-K, which a plain bool would reset.
            split_k = getattr(matmul, f"{name}_split_k", True)
            before = getattr(matmul, name)
            self._set(matmul, name, False, before if split_k else (before, split_k))
        if self._convolves:
            self._set(_CONVOLUTIONS, "fp32_precision", self._fp32, _CONVOLUTIONS.fp32_precision)
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
