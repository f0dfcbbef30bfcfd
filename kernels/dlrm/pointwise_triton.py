"""The Triton form of `kernels.dlrm.pointwise`, and the activation that other kernels share."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Elements of a program. 1,024 in 4 warps is 8 elements a thread: one 16-byte access in half precision, two in
# float32. From 128 x 1,024 elements on, the programs fill the chip.
_BLOCK = 1024


@triton.jit
def activate(value, ACTIVATION: tl.constexpr):
    """The activation in float32. A comparison in place of a maximum keeps NaN."""
    if ACTIVATION == "relu":
        value = tl.where(value < 0.0, 0.0, value)
    elif ACTIVATION == "sigmoid":
        value = 1.0 / (1.0 + tl.exp(-value))
    return value


@triton.jit
def _pointwise_kernel(
    x_ptr,
    y_ptr,
    bias_ptr,
    out_ptr,
    numel,
    scale,
    N: tl.constexpr,
    SCALED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)
    inside = at < numel
    # One 64-bit remainder a program; the remainders of its elements fit 32 bits and divide by a constant.
    column = ((start % N).to(tl.int32) + tl.arange(0, BLOCK)) % N
    value = tl.load(x_ptr + at, mask=inside).to(tl.float32)
    if SCALED:
        value += scale * tl.load(y_ptr + at, mask=inside).to(tl.float32)
    value += tl.load(bias_ptr + column, mask=inside, eviction_policy="evict_last").to(tl.float32)
    value = activate(value, ACTIVATION)
    tl.store(out_ptr + at, value.to(out_ptr.dtype.element_ty), mask=inside)


def launch_pointwise(
    x: torch.Tensor,
    y: torch.Tensor | None,
    bias_N: torch.Tensor,
    scale: float,
    activation: str,
    out: torch.Tensor,
) -> None:
    """Write activation(x + scale * y + bias) to ``out``; without ``y``, activation(x + bias)."""
    _pointwise_kernel[(triton.cdiv(x.numel(), _BLOCK),)](
        x,
        x if y is None else y,
        bias_N,
        out,
        x.numel(),
        scale,
        N=x.shape[-1],
        SCALED=y is not None,
        ACTIVATION=activation,
        BLOCK=_BLOCK,
    )
