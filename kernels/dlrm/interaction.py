"""DLRM's "dot" interaction in one kernel: the dense vector, then the lower triangle of pairwise products.

The result equals `FeatureInteraction("dot", ...)` in `reference/dlrm_layers.py`. Eager PyTorch writes all F x
F products and reads them twice, to select the triangle and to concatenate. Here a row's products stay in
registers.

Legend: B batch, F interacting vectors, D embedding.
"""

from __future__ import annotations

import torch

from kernels.dlrm.checks import (
    output_for,
    require,
    require_backend,
    require_rank,
)

BACKENDS = ("torch", "triton")
# A program holds all of a row's vectors and products: at most 64 x 64 products and 64 x 512 elements fit.
MAX_VECTORS = 64
MAX_COLUMNS = 512


def interaction_columns(num_vectors: int, columns: int, itself: bool = False) -> int:
    """Columns of the result: D, and one for each pair; ``itself`` adds pairs of a vector with itself."""
    return columns + num_vectors * (num_vectors + (1 if itself else -1)) // 2


def dot_interaction(
    features_BFD: torch.Tensor,
    itself: bool = False,
    *,
    backend: str = "triton",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Vector 0, then the products of every two vectors: (1,0), (2,0), (2,1), (3,0)... row by row.

    Products are summed in float32 and rounded once.

    Args:
        features_BFD: contiguous, F from 1 to 64, D from 1 to 512.
        itself: whether to include each vector's product with itself.
        backend: "torch" or "triton".
        out: (B, `interaction_columns`) of the features' dtype. Rows may have gaps between them, which align
            them for a matrix product.

    Raises:
        KernelError: an argument does not fit, or the backend cannot run.
    """
    require_rank("features_BFD", features_BFD, 3, "(batch, vectors, columns)")
    batch, vectors, columns = features_BFD.shape
    require_sizes(vectors, columns)
    require_backend(backend, BACKENDS, {"features_BFD": features_BFD}, ("features_BFD",))
    shape = (batch, interaction_columns(vectors, columns, itself))
    if backend == "torch":
        result = dot_interaction_torch(features_BFD, itself)
        return result if out is None else output_for(out, shape, features_BFD).copy_(result)
    require(
        features_BFD.is_contiguous(), "features_BFD.stride()", features_BFD.stride(), "make it contiguous"
    )
    result = output_for(out, shape, features_BFD)
    if result.numel():
        from kernels.dlrm.interaction_triton import launch

        launch(features_BFD, itself, result)
    return result


def require_sizes(vectors: int, columns: int) -> None:
    """Raise `KernelError` unless a program can hold one row's vectors."""
    require(1 <= vectors <= MAX_VECTORS, "vectors", vectors, f"give 1 to {MAX_VECTORS}")
    require(1 <= columns <= MAX_COLUMNS, "columns", columns, f"give 1 to {MAX_COLUMNS}")


def dot_interaction_torch(features_BFD: torch.Tensor, itself: bool) -> torch.Tensor:
    """The definition, in plain PyTorch operations."""
    vectors = features_BFD.shape[1]
    row_P, column_P = torch.tril_indices(
        vectors, vectors, offset=0 if itself else -1, device=features_BFD.device
    )
    products_BFF = torch.bmm(features_BFD, features_BFD.transpose(1, 2))
    return torch.cat((features_BFD[:, 0], products_BFF[:, row_P, column_P]), dim=1)
