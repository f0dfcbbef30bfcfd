"""Shards as the store's manifest says, or an error that names rank, table and fault."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from parity.base.errors import UserError
from parity.base.precision import dtype_name
from parity.base.sealed import read_sealed
from tables.interface import Tables
from tables.store import Manifest, Shard, StoredTable, row_digest

_FIX = "copy the shard of this version from the store, or write the store again"
_PIECE = 2**26
"""Bytes of a file that are read at once."""


def open_shard(manifest: Manifest, stored: StoredTable, shard: Shard, thorough: bool = True) -> torch.Tensor:
    """The rows of a shard, (rows, E), mapped from its file.

    The manifest's table, rank, rows, type, version, size and probes are compared with the file and the entry
    beside it.

    Args:
        manifest: The store's manifest.
        stored: The table.
        shard: The shard.
        thorough: Whether all bytes are compared with the digest, too. It takes about a second a gigabyte.

    Raises:
        UserError: The shard is missing, swapped, off by rows, stale or of another type.
    """
    path, table = manifest.path(stored, shard), stored.table
    try:
        label = read_sealed(manifest.path(stored, shard, "json"))
        if not isinstance(label, dict):
            raise ValueError("it has no fields")
        size = path.stat().st_size
    except OSError as error:
        raise _fault(stored, shard, path, f"is missing ({error.strerror})") from error
    except ValueError as error:
        raise _fault(stored, shard, path, f"has a damaged entry ({error})") from error
    problem = _label_problem(label, stored.label(shard))
    if problem:
        raise _fault(stored, shard, path, problem)
    if size != shard.rows * table.row_bytes:
        problem = (
            f"has {size} bytes, not {shard.rows * table.row_bytes}: rows are missing, or of another type"
        )
        raise _fault(stored, shard, path, problem)
    rows = _mapped(path, shard.rows * table.columns, table.dtype).view(shard.rows, -1)
    wrong = not _probes_match(rows, shard, 0)
    if wrong or (thorough and _digest(path) != shard.sha256):
        raise _fault(stored, shard, path, _content_problem(rows, manifest, stored, shard))
    return rows


def _mapped(path: Path, count: int, dtype: torch.dtype) -> torch.Tensor:
    """The elements of a file. PyTorch opens no path that is not UTF-8; the path by the file's number is."""
    with path.open("rb") as file:
        return torch.from_file(f"/proc/self/fd/{file.fileno()}", shared=False, size=count, dtype=dtype)


def check_probes(tables: Tables, manifest: Manifest) -> None:
    """Look up the known rows of every shard. Every rank calls this where lookups are collective.

    Raises:
        UserError: A row is not the known one.
    """
    for stored in manifest.tables.values():
        known = [(shard, row, digest) for shard in stored.shards for row, digest in shard.probes]
        rows = tables.lookup(stored.table.name, torch.tensor([row for _, row, _ in known]))
        for (shard, row, digest), served in zip(known, rows.cpu(), strict=True):
            if row_digest(served) != digest:
                raise _fault(stored, shard, f"row {row}", "is not the row that the store's manifest knows")


def _fault(stored: StoredTable, shard: Shard, value: object, problem: str) -> UserError:
    return UserError(f"rank {shard.rank}, table {stored.table.name}", str(value), problem, _FIX)


def _label_problem(label: dict[str, Any], expected: dict[str, Any]) -> str:
    """The first difference between a shard's own entry and the manifest's, or nothing."""
    problems: dict[str, Callable[[Any, Any], str]] = {
        "schema": lambda own, wanted: f"has schema {own}, not {wanted}",
        "table": lambda own, wanted: f"is swapped: it is a shard of table {own}",
        "rank": lambda own, wanted: f"is swapped: it is the shard of rank {own}",
        "dtype": lambda own, wanted: f"is of another type: {own}, not {wanted}",
        "columns": lambda own, wanted: f"has {own} columns, not {wanted}",
        "first_row": lambda own, wanted: f"is off by {_less(own, wanted)} rows: it begins with row {own}",
        "rows": lambda own, wanted: f"has {own} rows, not {wanted}",
        "version": lambda own, wanted: f"is stale: of version {own} of the table, not {wanted}",
    }
    for name, problem in problems.items():
        if label.get(name) != expected[name]:
            return problem(label.get(name), expected[name])
    return ""


def _less(own: object, wanted: int) -> object:
    return own - wanted if isinstance(own, int) else "some"


def _content_problem(rows: torch.Tensor, manifest: Manifest, stored: StoredTable, shard: Shard) -> str:
    """The fault of a file whose bytes are not the manifest's."""
    for shift, side in ((1, "behind"), (-1, "in front of")):
        if _probes_match(rows, shard, shift):
            return f"is off by one row: its rows are one place {side} their own"
    digest = _digest(manifest.path(stored, shard))
    for other in manifest.tables.values():
        for twin in other.shards:
            if twin.sha256 == digest:
                return f"is swapped: it has the rows of rank {twin.rank}, table {other.table.name}"
    kind = dtype_name(stored.table.dtype)
    return f"is stale or damaged, or not {kind}: its bytes are not those of version {stored.version}"


def _probes_match(rows: torch.Tensor, shard: Shard, shift: int) -> bool:
    """Whether the known rows are `shift` places behind their own. Places outside the shard do not count."""
    places = [(row - shard.first_row + shift, digest) for row, digest in shard.probes]
    inside = [(place, digest) for place, digest in places if 0 <= place < len(rows)]
    return bool(inside) and all(row_digest(rows[place]) == digest for place, digest in inside)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
