"""Sum-pooled embedding bags of all tables in one launch, alone or followed by DLRM's interaction.

The result equals `reference.embedding_bags.pool_bags`, table by table. PyTorch launches one kernel a table.
At DLRM's sizes each kernel lasts a few microseconds, so that the number of launches decides the time.

Legend: B batch, T tables, L number of indices of all tables, D embedding, F = T + 1 interacting vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from kernels.dlrm.checks import (
    FUSED_DTYPES,
    output_for,
    require,
    require_backend,
    require_equal,
    require_shape,
)
from kernels.dlrm.coded_tables import CodedTableGroup
from kernels.dlrm.interaction import dot_interaction_torch, interaction_columns, require_sizes
from kernels.dlrm.tables import Bags, TableGroup

BACKENDS = ("torch", "triton")
INTERACTION_BACKENDS = ("torch", "triton", "cuda")


def embedding_bags(
    group: TableGroup,
    bags: Bags,
    *,
    backend: str = "triton",
    dtype: torch.dtype | None = None,
    validate: bool = True,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sum each bag's rows, each times its weight if there are weights -> (B, T, D); an empty bag gives zeros.

    Sums are float32 and rounded once. Rows of codes are dequantised and rounded to the result's dtype before
    the sum, as the reference has them.

    Args:
        group: the tables, also a `CodedTableGroup`.
        bags: rows to look up.
        backend: "torch" or "triton".
        dtype: dtype of the result; that of the tables' numbers by default.
        validate: whether to check indices and offsets, which copies them to the host. Without the check, an
            index out of range reads memory beyond its table.
        out: (B, T, D) of that dtype; a row's T x D elements are contiguous, rows may have gaps between them.

    Raises:
        KernelError: an argument does not fit, or the backend cannot run.
    """
    batch = _check_bags(group, bags, backend, validate)
    like, dtype = group.tables[0], dtype or group.dtype
    has_form = dtype in FUSED_DTYPES or (backend == "torch" and dtype.is_floating_point)
    require(has_form, "dtype", dtype, "give one of " + ", ".join(map(str, FUSED_DTYPES)))
    shape = (batch, len(group.tables), group.columns)
    if backend == "torch":
        result = _embedding_bags_torch(group, bags, batch, dtype).to(dtype)
        return result if out is None else output_for(out, shape, like, dtype).copy_(result)
    result = output_for(out, shape, like, dtype)
    together = result.stride()[1:] == (group.columns, 1) or result.numel() == 0
    require(together, "out.stride()", result.stride(), f"must end in {group.columns}, 1")
    if result.numel():
        from kernels.dlrm.bags_triton import launch_bags

        launch_bags(group, bags, result)
    return result


def bags_interaction(
    dense_BD: torch.Tensor,
    group: TableGroup,
    bags: Bags,
    itself: bool = False,
    *,
    backend: str = "triton",
    validate: bool = True,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`dot_interaction` of ``dense_BD`` and `embedding_bags`, in one kernel -> (B, `interaction_columns`).

    Args:
        dense_BD: the bottom MLP's output, contiguous; vectors are multiplied in its dtype.
        group: the tables, in a dtype of their own, or a `CodedTableGroup`.
        bags: rows to look up.
        itself: see `dot_interaction`.
        backend: "torch", "triton" or "cuda"; "cuda" is for half types and D a multiple of 16, and slower
            than Triton's, see benchmarks/results/dlrm_kernels.md.
        validate: see `embedding_bags`.
        out: see `dot_interaction`.

    Raises:
        KernelError: an argument does not fit, or the backend cannot run.
    """
    batch = _check_bags(group, bags, backend, validate, {"dense_BD": dense_BD}, INTERACTION_BACKENDS)
    require_shape("dense_BD", dense_BD, (batch, group.columns))
    require(dense_BD.is_contiguous(), "dense_BD.stride()", dense_BD.stride(), "make it contiguous")
    vectors = len(group.tables) + 1
    require_sizes(vectors, group.columns)
    shape = (batch, interaction_columns(vectors, group.columns, itself))
    if backend == "torch":
        pooled_BTD = _embedding_bags_torch(group, bags, batch, dense_BD.dtype).to(dense_BD.dtype)
        result = dot_interaction_torch(torch.cat((dense_BD[:, None], pooled_BTD), dim=1), itself)
        return result if out is None else output_for(out, shape, dense_BD).copy_(result)
    result = output_for(out, shape, dense_BD)
    if backend == "cuda":
        _require_tensor_cores(dense_BD, group)
        from kernels.dlrm.cuda_extension import launch_bags_interaction
    else:
        from kernels.dlrm.bags_triton import launch_bags_interaction
    if result.numel():
        launch_bags_interaction(dense_BD, group, bags, itself, result)
    return result


def _require_tensor_cores(dense_BD: torch.Tensor, group: TableGroup) -> None:
    """Raise `KernelError` unless the CUDA C++ form accepts these sizes, types and addresses."""
    fix = "must be {}, or use backend='triton'"
    require(group.bits == 0, "group.bits", group.bits, fix.format("0, of tables of numbers"))
    half = dense_BD.dtype in (torch.float16, torch.bfloat16)
    require(half, "dense_BD.dtype", dense_BD.dtype, fix.format("torch.float16 or torch.bfloat16"))
    require(group.columns % 16 == 0, "columns", group.columns, fix.format("a multiple of 16"))
    for name, tensor in {
        "dense_BD": dense_BD,
        **{f"tables[{i}]": t for i, t in enumerate(group.tables)},
    }.items():
        at = tensor.data_ptr()
        require(at % 16 == 0, f"{name}.data_ptr()", at, fix.format("a multiple of 16 bytes"))


def _check_bags(
    group: TableGroup,
    bags: Bags,
    backend: str,
    validate: bool,
    others: dict[str, torch.Tensor] | None = None,
    available: Sequence[str] = BACKENDS,
) -> int:
    """The batch size, after checks that the bags fit the group."""
    for name, value, kind in (("group", group, TableGroup), ("bags", bags, Bags)):
        require(isinstance(value, kind), name, value, f"give a {kind.__name__}")
    tensors = {"tables": group.tables[0], "indices_L": bags.indices_L, **(others or {})}
    if bags.weights_L is not None:
        require_equal("weights_L", "dtype", bags.weights_L.dtype, "tables", group.dtype)
        tensors["weights_L"] = bags.weights_L
    for name, tensor in tensors.items():
        require_equal(name, "device", tensor.device, "tables", group.tables[0].device)
    require_backend(backend, available, tensors, tuple(others or ()))
    is_number = group.bits > 0 or group.dtype.is_floating_point
    require(is_number, "tables[0].dtype", group.dtype, "give a floating-point type, or a CodedTableGroup")
    if validate:
        bags.check_values(group)
    return bags.batch(len(group.tables))


def _embedding_bags_torch(group: TableGroup, bags: Bags, batch: int, dtype: torch.dtype) -> torch.Tensor:
    """The definition: PyTorch's own operation, table by table, (B, T, D).

    Args:
        dtype: type that dequantised rows are rounded to; sums stay float32.
    """
    if batch == 0:
        return group.tables[0].new_empty(0, len(group.tables), group.columns, dtype=group.dtype)
    pooled = []
    for number, table in enumerate(group.tables):
        starts = bags.offsets[number * batch : (number + 1) * batch + 1]
        first, last = int(starts[0]), int(starts[-1])
        indices_L = bags.indices_L[first:last]
        if isinstance(group, CodedTableGroup):
            table = group.rows(number, indices_L).to(dtype).float()
            indices_L = torch.arange(len(indices_L), dtype=indices_L.dtype, device=indices_L.device)
        pooled.append(
            functional.embedding_bag(
                indices_L,
                table,
                starts[:-1] - first,
                mode="sum",
                per_sample_weights=None if bags.weights_L is None else bags.weights_L[first:last],
            )
        )
    return torch.stack(pooled, dim=1)
