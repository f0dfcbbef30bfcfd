"""The interface of all engines, and the checks of their arguments.

Legend: L ids, B bags, E columns.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import torch

from parity.base.errors import UserError, check_names
from parity.base.precision import dtype_name

DTYPES = {dtype_name(dtype): dtype for dtype in (torch.float32, torch.float16, torch.bfloat16)}
"""Types of tables, by name."""
_IDS = (torch.int64, torch.int32)

Engine = TypeVar("Engine", bound="Tables")


@dataclass(frozen=True)
class Table:
    """The shape of a table.

    Attributes:
        name: Name in calls.
        rows: Number of rows; ids are 0..rows - 1.
        columns: E.
        dtype: Type of the numbers, one of `DTYPES`.
    """

    name: str
    rows: int
    columns: int
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        return self.columns * self.dtype.itemsize


class Tables(abc.ABC):
    """Rows and pooled sums of tables.

    Args:
        tables: The tables that the engine has.
        device: Device of the results.

    Attributes:
        tables: The same, by name.
        device: The same.
    """

    def __init__(self, tables: Iterable[Table], device: torch.device) -> None:
        self.tables: Mapping[str, Table] = {table.name: table for table in tables}
        self.device = device
        self._is_closed = False

    def lookup(self, table: str, ids: torch.Tensor) -> torch.Tensor:
        """The rows of some ids, bit for bit.

        Args:
            table: Name of the table.
            ids: (...) int64 or int32, on any device.

        Returns:
            (..., E) in the table's type, on the engine's device.

        Raises:
            UserError: The table is unknown, or an id is no row of it.
        """
        shape = self._table(table)
        flat_L = _checked_ids(shape, ids).reshape(-1)
        return self._lookup(shape, flat_L).reshape(*ids.shape, shape.columns)

    def pooled(
        self, table: str, ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The sum of the rows of each bag, computed in float32 and rounded once.

        Args:
            table: Name of the table.
            ids: (L,) int64 or int32, bag by bag.
            offsets: (B,) int64, the first position of each bag in `ids`. The last bag ends with `ids`.
            weights: (L,) float32 factors of the rows; None for ones.

        Returns:
            (B, E) in the table's type, on the engine's device. An empty bag has zeros.

        Raises:
            UserError: As of `lookup`, or the offsets or weights do not fit the ids.
        """
        shape = self._table(table)
        ids_L = _checked_ids(shape, ids)
        if ids.ndim != 1:
            raise UserError(f"ids of table {table}", tuple(ids.shape), "is no single axis", "flatten the ids")
        offsets_B = _checked_offsets(shape, offsets, len(ids))
        if weights is not None and (weights.dtype != torch.float32 or weights.shape != ids.shape):
            value = f"{dtype_name(weights.dtype)} {tuple(weights.shape)}"
            problem = f"is not float32 {tuple(ids.shape)}, the shape of the ids"
            raise UserError(f"weights of table {table}", value, problem, "give a float32 factor for each id")
        return self._pooled(shape, ids_L, offsets_B, weights)

    def close(self) -> None:
        """Give back memory and processes. Later calls raise `ValueError`."""
        self._is_closed = True

    def __enter__(self: Engine) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abc.abstractmethod
    def _lookup(self, table: Table, ids_L: torch.Tensor) -> torch.Tensor:
        """(L, E) for checked int64 ids."""

    @abc.abstractmethod
    def _pooled(
        self, table: Table, ids_L: torch.Tensor, offsets_B: torch.Tensor, weights_L: torch.Tensor | None
    ) -> torch.Tensor:
        """(B, E) for checked arguments."""

    def _table(self, name: str) -> Table:
        if self._is_closed:
            raise ValueError("the tables are closed")
        check_names("table", [name], self.tables)
        return self.tables[name]


def _checked_ids(table: Table, ids: torch.Tensor) -> torch.Tensor:
    """The ids in int64. Raises `UserError` for the first one that is no row."""
    field = f"ids of table {table.name}"
    if not isinstance(ids, torch.Tensor) or ids.dtype not in _IDS:
        given = dtype_name(ids.dtype) if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise UserError(field, given, "is no tensor of int64 or int32", "give the numbers of rows")
    if ids.numel() == 0:
        return ids.long()
    # One wait for a GPU, and not two.
    least, largest = torch.stack(ids.aminmax()).tolist()
    if least < 0 or largest >= table.rows:
        flat_L = ids.reshape(-1)
        first = int(((flat_L < 0) | (flat_L >= table.rows)).nonzero()[0])
        raise UserError(
            f"{field}, position {first}",
            int(flat_L[first]),
            f"is no row of 0..{table.rows - 1}",
            "map the ids to rows of the table",
        )
    return ids.long()


def _checked_offsets(table: Table, offsets: torch.Tensor, count: int) -> torch.Tensor:
    """The offsets in int64. Raises `UserError` if they are no division of `count` ids into bags."""
    field = f"offsets of table {table.name}"
    if offsets.dtype not in _IDS or offsets.ndim != 1:
        value = f"{dtype_name(offsets.dtype)} {tuple(offsets.shape)}"
        raise UserError(field, value, "is no single axis of int64", "give the first position of each bag")
    ends_B = torch.cat([offsets[1:].long(), offsets.new_tensor([count], dtype=torch.int64)])
    bad = (offsets > ends_B[: len(offsets)]).nonzero()
    if len(bad):
        first = int(bad[0])
        problem = f"is behind the end of its bag, {int(ends_B[first])}"
        raise UserError(f"{field}[{first}]", int(offsets[first]), problem, "give offsets that never decrease")
    if (int(offsets[0]) if len(offsets) else count) != 0:
        value = int(offsets[0]) if len(offsets) else "none"
        raise UserError(f"{field}[0]", value, "leaves ids without a bag", "begin with 0")
    return offsets.long()
