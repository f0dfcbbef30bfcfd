"""Sum-pooled embedding bags of all tables in one launch, alone or with DLRM's interaction behind them.

The function of `reference.embedding_bags.pool_bags`, table by table. PyTorch launches one kernel a table; at
the sizes of DLRM each lasts a few microseconds, and what a step costs is their number.

Bags of all tables lie in one vector of indices, table after table; ``offsets`` (T * B + 1) says where bag b
of table t begins, at place t * B + b, and its last entry where the last bag ends.

Legend: B batch, T tables, L number of indices of all tables, D embedding, F = T + 1 interacting vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch.nn import functional

from kernels.lecture.checks import (
    KernelError,
    output_for,
    require,
    require_alike,
    require_backend,
    require_rank,
    require_shape,
)
from kernels.lecture.interaction import (
    MAX_COLUMNS,
    dot_interaction_torch,
    interaction_columns,
    require_sizes,
)

BACKENDS = ("torch", "triton")
INTERACTION_BACKENDS = ("torch", "triton", "cuda")
INDEX_DTYPES = (torch.int32, torch.int64)


class TableGroup:
    """Tables (rows, D) of one width, dtype and device, any number of rows each; none is copied.

    The kernels read the tables where they are: changes of values are seen, and a table that shall have other
    storage needs a new group.

    Raises:
        KernelError: naming the table that does not fit.
    """

    def __init__(self, tables: Sequence[torch.Tensor]) -> None:
        require(len(tables) > 0, "tables", list(tables), "give at least one")
        for number, table in enumerate(tables):
            require_rank(f"tables[{number}]", table, 2, "(rows, columns)")
            require_shape(f"tables[{number}]", table, (table.shape[0], tables[0].shape[1]))
            require(table.is_contiguous(), f"tables[{number}].stride()", table.stride(), "make it contiguous")
            require(table.shape[0] > 0, f"tables[{number}].shape[0]", table.shape[0], "give a row at least")
        require_alike({f"tables[{number}]": table for number, table in enumerate(tables)})
        self.tables = tuple(table.detach() for table in tables)
        self.columns = tables[0].shape[1]
        require(1 <= self.columns <= MAX_COLUMNS, "columns", self.columns, f"give 1 to {MAX_COLUMNS}")

    @cached_property
    def addresses_T(self) -> torch.Tensor:
        """Where each table begins in memory, int64, on the tables' device."""
        addresses = [table.data_ptr() for table in self.tables]
        return torch.tensor(addresses, dtype=torch.int64, device=self.tables[0].device)


@dataclass(frozen=True)
class Bags:
    """The bags of T tables for B rows, see the module's docstring for the layout.

    Attributes:
        indices_L: int32 or int64.
        offsets: (T * B + 1), of the indices' dtype.
        weights_L: one weight for each index in the tables' dtype, or None.
    """

    indices_L: torch.Tensor
    offsets: torch.Tensor
    weights_L: torch.Tensor | None = None

    def __post_init__(self) -> None:
        require_rank("indices_L", self.indices_L, 1, "a vector")
        require_rank("offsets", self.offsets, 1, "a vector")
        dtype = self.indices_L.dtype
        require(dtype in INDEX_DTYPES, "indices_L.dtype", dtype, "give torch.int32 or torch.int64")
        require_alike({"indices_L": self.indices_L, "offsets": self.offsets})
        require(self.offsets.numel() > 0, "offsets", self.offsets, "give tables * batch + 1 of them")
        if self.weights_L is not None:
            require_shape("weights_L", self.weights_L, self.indices_L.shape)
        for name in ("indices_L", "offsets", "weights_L"):
            tensor = getattr(self, name)
            contiguous = tensor is None or tensor.is_contiguous()
            require(contiguous, name, "strided", "make it contiguous")

    @classmethod
    def join(
        cls,
        lS_o: Sequence[torch.Tensor],
        lS_i: Sequence[torch.Tensor],
        lS_w: Sequence[torch.Tensor] | None = None,
    ) -> Bags:
        """Of the reference's form: T vectors (B,) of offsets, T vectors of indices, and of weights."""
        require(len(lS_o) == len(lS_i) > 0, "lS_o", len(lS_o), f"give one entry a table, {len(lS_i)} as lS_i")
        bases = torch.tensor([0, *(len(indices) for indices in lS_i)]).cumsum(0).tolist()
        starts = [offsets + base for offsets, base in zip(lS_o, bases, strict=False)]
        end = starts[0].new_tensor([bases[-1]])
        weights_L = None if lS_w is None else torch.cat(tuple(lS_w))
        return cls(torch.cat(tuple(lS_i)), torch.cat((*starts, end)), weights_L)

    def batch(self, tables: int) -> int:
        """B, for T ``tables``; raises `KernelError` where the offsets do not divide among them."""
        bags = self.offsets.numel() - 1
        require(bags % tables == 0, "offsets", f"{bags} + 1 of them", f"give batch * {tables} + 1")
        return bags // tables

    def check_values(self, group: TableGroup) -> None:
        """Raise `KernelError` unless offsets and indices can be looked up. Reads values: not for timing."""
        batch = self.batch(len(group.tables))
        offsets = self.offsets.cpu()
        steps = offsets[1:] - offsets[:-1]
        if int(offsets[0]) != 0 or int(offsets[-1]) != self.indices_L.numel() or bool((steps < 0).any()):
            raise KernelError(
                f"offsets run from {int(offsets[0])} to {int(offsets[-1])}: they must rise from 0 to the "
                f"number of indices, {self.indices_L.numel()}"
            )
        for number, table in enumerate(group.tables):
            own = self.indices_L[int(offsets[number * batch]) : int(offsets[(number + 1) * batch])]
            outside = own[(own < 0) | (own >= table.shape[0])]
            if outside.numel():
                raise KernelError(
                    f"table {number}: index {int(outside[0])} is out of range: its {table.shape[0]} rows are "
                    f"0 to {table.shape[0] - 1}"
                )


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

    Sums are float32 and rounded once.

    Args:
        group: the tables.
        bags: what to look up.
        backend: "torch" or "triton".
        dtype: of the result; the tables' unless given.
        validate: check indices and offsets, which reads them back from the device. Without it the caller
            answers for them: an index out of range reads foreign memory.
        out: (B, T, D) of that dtype; a row's T x D elements lie together, rows may lie further apart.

    Raises:
        KernelError: for arguments that do not fit, and backends that cannot run.
    """
    batch = _check_bags(group, bags, backend, validate)
    like = group.tables[0]
    shape = (batch, len(group.tables), group.columns)
    if backend == "torch":
        result = _embedding_bags_torch(group, bags, batch).to(dtype or like.dtype)
        return result if out is None else output_for(out, shape, like, dtype).copy_(result)
    result = output_for(out, shape, like, dtype)
    together = result.stride()[1:] == (group.columns, 1) or result.numel() == 0
    require(together, "out.stride()", result.stride(), f"must end in {group.columns}, 1")
    if result.numel():
        from kernels.lecture.bags_triton import launch_bags

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
    """`embedding_bags` in ``dense_BD``'s dtype, behind ``dense_BD``, then `dot_interaction`: in one kernel.

    Args:
        dense_BD: the bottom MLP's output, contiguous; its dtype is that in which vectors are multiplied.
        group: the tables, in a dtype of their own.
        bags: what to look up.
        itself: see `dot_interaction`.
        backend: "torch", "triton" or "cuda"; "cuda" is for half types and D a multiple of 16, and slower
            than Triton's, see docs/kernels_dlrm.md.
        validate: see `embedding_bags`.
        out: see `dot_interaction`.

    Raises:
        KernelError: for arguments that do not fit, and backends that cannot run.
    """
    batch = _check_bags(group, bags, backend, validate, {"dense_BD": dense_BD}, INTERACTION_BACKENDS)
    require_shape("dense_BD", dense_BD, (batch, group.columns))
    require(dense_BD.is_contiguous(), "dense_BD.stride()", dense_BD.stride(), "make it contiguous")
    vectors = len(group.tables) + 1
    require_sizes(vectors, group.columns)
    shape = (batch, interaction_columns(vectors, group.columns, itself))
    if backend == "torch":
        pooled_BTD = _embedding_bags_torch(group, bags, batch).to(dense_BD.dtype)
        result = dot_interaction_torch(torch.cat((dense_BD[:, None], pooled_BTD), dim=1), itself)
        return result if out is None else output_for(out, shape, dense_BD).copy_(result)
    result = output_for(out, shape, dense_BD)
    if backend == "cuda":
        _require_tensor_cores(dense_BD, group)
        from kernels.lecture.cuda_extension import launch_bags_interaction
    else:
        from kernels.lecture.bags_triton import launch_bags_interaction
    if result.numel():
        launch_bags_interaction(dense_BD, group, bags, itself, result)
    return result


def _require_tensor_cores(dense_BD: torch.Tensor, group: TableGroup) -> None:
    """Raise `KernelError` unless the CUDA C++ form takes these sizes, types and addresses."""
    fix = "must be {}, or use backend='triton'"
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
    """The batch size of bags that fit the group."""
    tensors = {"tables": group.tables[0], "indices_L": bags.indices_L, **(others or {})}
    if bags.weights_L is not None:
        require_alike({"tables": group.tables[0], "weights_L": bags.weights_L})
        tensors["weights_L"] = bags.weights_L
    for name, tensor in tensors.items():
        wanted = group.tables[0].device
        require(
            tensor.device == wanted, f"{name}.device", str(tensor.device), f"must be the tables', {wanted}"
        )
    require_backend(backend, available, tensors, tuple(others or ()))
    if validate:
        bags.check_values(group)
    return bags.batch(len(group.tables))


def _embedding_bags_torch(group: TableGroup, bags: Bags, batch: int) -> torch.Tensor:
    """The definition: PyTorch's own operation, table by table, (B, T, D)."""
    if batch == 0:
        return group.tables[0].new_empty(0, len(group.tables), group.columns)
    pooled = []
    for number, table in enumerate(group.tables):
        starts = bags.offsets[number * batch : (number + 1) * batch + 1]
        first, last = int(starts[0]), int(starts[-1])
        pooled.append(
            functional.embedding_bag(
                bags.indices_L[first:last],
                table,
                starts[:-1] - first,
                mode="sum",
                per_sample_weights=None if bags.weights_L is None else bags.weights_L[first:last],
            )
        )
    return torch.stack(pooled, dim=1)
