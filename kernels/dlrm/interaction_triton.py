"""The Triton form of `kernels.dlrm.interaction`, one program for each row of the batch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# A row is little work: many programs of one warp hide each other's latency best. Tensor cores do not multiply
# float32: one warp alone would spill 2,240 bytes a thread.
_WARPS, _FLOAT32_WARPS = 1, 4


@triton.jit
def store_interaction(
    dense, features, out_ptr, F, D, ITSELF: tl.constexpr, BF: tl.constexpr, BD: tl.constexpr
):
    """Write ``dense`` (BD,), followed by the lower triangle of the products of ``features`` (BF, BD).

    Only F x D elements of the features count; columns from D on must be zero.
    """
    vector = tl.arange(0, BF)
    column = tl.arange(0, BD)
    element = out_ptr.dtype.element_ty
    tl.store(out_ptr + column, dense, mask=column < D)
    # "ieee" multiplies float32 without a rounding to tf32.
    products = tl.dot(features, tl.trans(features), input_precision="ieee")
    i = vector[:, None]
    j = vector[None, :]
    if ITSELF:
        at = i * (i + 1) // 2 + j
        wanted = (j <= i) & (i < F)
    else:
        at = i * (i - 1) // 2 + j
        wanted = (j < i) & (i < F)
    tl.store(out_ptr + D + at, products.to(element), mask=wanted)


@triton.jit
def _interaction_kernel(
    features_ptr,
    out_ptr,
    out_stride,
    F: tl.constexpr,
    D: tl.constexpr,
    ITSELF: tl.constexpr,
    BF: tl.constexpr,
    BD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    vector = tl.arange(0, BF)
    column = tl.arange(0, BD)
    inside = (vector[:, None] < F) & (column[None, :] < D)
    features_ptr += row * F * D
    features = tl.load(features_ptr + vector[:, None] * D + column[None, :], mask=inside, other=0.0)
    dense = tl.load(features_ptr + column, mask=column < D, other=0.0)
    store_interaction(dense, features, out_ptr + row * out_stride, F, D, ITSELF, BF, BD)


def block_sizes(vectors: int, columns: int) -> tuple[int, int]:
    """The powers of two that hold a row's vectors and columns; a matrix product needs 16 of each."""
    return max(16, triton.next_power_of_2(vectors)), max(16, triton.next_power_of_2(columns))


def launch(features_BFD: torch.Tensor, itself: bool, out: torch.Tensor) -> None:
    """Write the interaction of each row to ``out``."""
    batch, vectors, columns = features_BFD.shape
    block_vectors, block_columns = block_sizes(vectors, columns)
    _interaction_kernel[(batch,)](
        features_BFD,
        out,
        out.stride(0),
        F=vectors,
        D=columns,
        ITSELF=itself,
        BF=block_vectors,
        BD=block_columns,
        num_warps=_FLOAT32_WARPS if features_BFD.dtype == torch.float32 else _WARPS,
    )
