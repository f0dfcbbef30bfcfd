"""Embedding tables and the bags that look up rows in them.

Bags of all tables lie in one vector of indices, table after table. Bag b of table t
begins at `offsets[t * B + b]`. The last entry of `offsets` (T * B + 1) is the end of the last bag.

Legend: B batch, T tables, L number of indices of all tables, D embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from kernels.dlrm.checks import KernelError, require, require_alike, require_rank, require_shape
from kernels.dlrm.interaction import MAX_COLUMNS

INDEX_DTYPES = (torch.int32, torch.int64)


class TableGroup:
    """Tables (rows, D) of one width, dtype and device, with any number of rows, without a copy.

    The kernels read the tables in place: they see changed values. A table with new storage needs a new group.

    Attributes:
        bits: bits of a code; 0 for tables of numbers.

    Raises:
        KernelError: a table does not fit; the message names it.
    """

    bits = 0

    def __init__(self, tables: Sequence[torch.Tensor]) -> None:
        require(len(tables) > 0, "tables", list(tables), "give at least one")
        for number, table in enumerate(tables):
            require_rank(f"tables[{number}]", table, 2, "(rows, columns)")
            require_shape(f"tables[{number}]", table, (table.shape[0], tables[0].shape[1]))
            require(table.is_contiguous(), f"tables[{number}].stride()", table.stride(), "make it contiguous")
            require(table.shape[0] > 0, f"tables[{number}].shape[0]", table.shape[0], "give at least one row")
        require_alike({f"tables[{number}]": table for number, table in enumerate(tables)})
        for number, table in enumerate(tables):
            wants = table.requires_grad and torch.is_grad_enabled()
            fix = "the kernels have no backward; give table.detach(), or use torch.no_grad()"
            require(not wants, f"tables[{number}].requires_grad", wants, fix)
        self.tables = tuple(table.detach() for table in tables)
        self.columns = self._columns_of(tables[0].shape[1])
        require(1 <= self.columns <= MAX_COLUMNS, "columns", self.columns, f"give 1 to {MAX_COLUMNS}")

    def _columns_of(self, length: int) -> int:
        """D, for rows of ``length`` elements."""
        return length

    @property
    def dtype(self) -> torch.dtype:
        """Type of the rows' numbers, of their weights, and by default of their sums."""
        return self.tables[0].dtype

    @cached_property
    def addresses_T(self) -> torch.Tensor:
        """(T,) int64 addresses of the tables in memory, on their device."""
        addresses = [table.data_ptr() for table in self.tables]
        return torch.tensor(addresses, dtype=torch.int64, device=self.tables[0].device)


@dataclass(frozen=True)
class Bags:
    """The bags of T tables for B rows, in the layout of the module's docstring.

    Attributes:
        indices_L: (L,) int32 or int64.
        offsets: (T * B + 1) of the indices' dtype.
        weights_L: (L,) one weight for each index in the tables' dtype, or None.
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
        """Bags from the reference's form: T vectors (B,) of offsets, T vectors of indices, and of weights."""
        require(len(lS_o) == len(lS_i) > 0, "lS_o", len(lS_o), f"give one entry a table, {len(lS_i)} as lS_i")
        bases = torch.tensor([0, *(len(indices) for indices in lS_i)]).cumsum(0).tolist()
        starts = [offsets + base for offsets, base in zip(lS_o, bases, strict=False)]
        end = starts[0].new_tensor([bases[-1]])
        weights_L = None if lS_w is None else torch.cat(tuple(lS_w))
        return cls(torch.cat(tuple(lS_i)), torch.cat((*starts, end)), weights_L)

    def batch(self, tables: int) -> int:
        """B, for T ``tables``; raises `KernelError` for a number of offsets that T does not divide."""
        bags = self.offsets.numel() - 1
        require(bags % tables == 0, "offsets", f"{bags} + 1 of them", f"give batch * {tables} + 1")
        return bags // tables

    def check_values(self, group: TableGroup) -> None:
        """Raise `KernelError` for offsets or indices out of range. Copies both to the host."""
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
