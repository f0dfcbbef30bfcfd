"""Tables on disk: a raw file for each shard, and a manifest.

    FOLDER/manifest.json    tables: shape, type, version; shards: rank, first row, rows, digest, known rows
    FOLDER/item.0.bin       rows of the shard of rank 0 of the table `item`, without a header
    FOLDER/item.0.json      the entry of this file, which says what it holds wherever it is copied

A table is divided into blocks of rows, or is whole on one rank. The folder appears when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parity.base.errors import UserError
from parity.base.files import making
from parity.base.locks import Locked
from parity.base.precision import dtype_name
from parity.base.sealed import read_sealed, sealed
from tables.interface import DTYPES, Table

SCHEMA = "tables/1"
MANIFEST = "manifest.json"
PROBES = 16
"""Rows of a shard with a digest of their own; the first and the last are among them."""
_PIECE = 2**26
"""Bytes that are read of a source at once."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

By = Literal["rows", "tables"]


@dataclass(frozen=True)
class Source:
    """A table to write.

    Attributes:
        table: Its shape.
        read: From a first row and a number of rows to these rows, (rows, E) in the table's type.
    """

    table: Table
    read: Callable[[int, int], torch.Tensor]

    @classmethod
    def of(cls, name: str, rows: torch.Tensor) -> Source:
        """A table that is in memory, (rows, E)."""
        rows = rows.detach()
        return cls(Table(name, *rows.shape, rows.dtype), lambda first, count: rows[first : first + count])


@dataclass(frozen=True)
class Shard:
    """A block of rows of a table.

    Attributes:
        rank: Rank that serves it.
        first_row, rows: The first row and the number of rows.
        sha256: Digest of the raw file.
        probes: Rows, counted in the table, with the digests of their bytes.
    """

    rank: int
    first_row: int
    rows: int
    sha256: str
    probes: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class StoredTable:
    """A table of a store.

    Attributes:
        table: Its shape.
        version: Digest of its shape and shards.
        shards: Its shards in the order of rows.
    """

    table: Table
    version: str
    shards: tuple[Shard, ...]

    def label(self, shard: Shard) -> dict[str, Any]:
        """The content of the file that says what a shard's raw file holds."""
        table = self.table
        own = {"schema": SCHEMA, "table": table.name, "columns": table.columns}
        return own | {"dtype": dtype_name(table.dtype), "version": self.version} | _plain(shard)


@dataclass(frozen=True)
class Manifest:
    """What a store holds.

    Attributes:
        folder: The store.
        ranks: Number of ranks that its shards are for.
        tables: Its tables by name.
    """

    folder: Path
    ranks: int
    tables: Mapping[str, StoredTable]

    def path(self, stored: StoredTable, shard: Shard, suffix: str = "bin") -> Path:
        """The raw file of a shard, or the file beside it (`json`)."""
        return self.folder / f"{stored.table.name}.{shard.rank}.{suffix}"

    def on(self, rank: int) -> Iterator[tuple[StoredTable, Shard]]:
        """The shards of a rank."""
        for stored in self.tables.values():
            yield from ((stored, shard) for shard in stored.shards if shard.rank == rank)


def write(folder: Path, sources: Sequence[Source], ranks: int = 1, by: By = "rows") -> Manifest:
    """Write a store.

    Args:
        folder: A folder that does not exist yet.
        sources: The tables.
        ranks: Number of ranks.
        by: `rows` divides each table into blocks of rows, one a rank. `tables` gives each table to one rank,
            so that ranks have about the same number of bytes.

    Raises:
        UserError: A table has a bad name, shape or type, or the folder exists or cannot be written.
    """
    _check(sources, ranks)
    blocks = _row_blocks(sources, ranks) if by == "rows" else _table_blocks(sources, ranks)
    try:
        with making(folder) as unfinished:
            manifest = Manifest(unfinished, ranks, {})
            tables = {
                source.table.name: _write_table(manifest, source, blocks[source.table.name])
                for source in sources
            }
            content = {
                "schema": SCHEMA,
                "ranks": ranks,
                "tables": [_entry(table) for table in tables.values()],
            }
            (unfinished / MANIFEST).write_bytes(sealed(content))
    except FileExistsError as error:
        raise UserError("store", str(folder), "exists", "remove it, or choose another folder") from error
    except Locked as error:
        raise UserError("store", str(folder), str(error), "wait, or choose another folder") from error
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise UserError("store", str(folder), problem, "choose a folder that you can write to") from error
    return Manifest(folder, ranks, tables)


def read_manifest(folder: Path) -> Manifest:
    """What a store holds.

    Raises:
        UserError: The manifest is missing or damaged, or of another schema.
    """
    path, fix = Path(folder) / MANIFEST, "give a folder that tables.store.write made, or write it again"
    try:
        content = read_sealed(path)
    except OSError as error:
        raise UserError("store", str(path), f"cannot be read ({error.strerror})", fix) from error
    except ValueError as error:
        raise UserError("store", str(path), f"is damaged ({error})", fix) from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise UserError("store", str(path), f"has schema {schema}, not {SCHEMA}", fix)
    try:
        described = _Content.model_validate_json(json.dumps(content), strict=True)
        tables = {entry.name: entry.stored(described.ranks) for entry in described.tables}
        if len(tables) < len(described.tables):
            raise ValueError("two tables have one name")
    except ValueError as error:
        raise UserError("store", str(path), f"describes no store ({_first_problem(error)})", fix) from error
    return Manifest(Path(folder), described.ranks, tables)


def row_digest(row: torch.Tensor) -> str:
    """A digest of the bytes of one row."""
    return hashlib.sha256(as_bytes(row)).hexdigest()[:16]


def as_bytes(rows: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor, (n,) uint8; NumPy has no bfloat16."""
    return rows.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


class _Shard(BaseModel):
    """A shard in the manifest, see `Shard`."""

    model_config = ConfigDict(extra="forbid")

    rank: Annotated[int, Field(ge=0)]
    first_row: Annotated[int, Field(ge=0)]
    rows: Annotated[int, Field(ge=1)]
    sha256: str
    probes: Annotated[tuple[tuple[int, str], ...], Field(min_length=1)]


class _Table(BaseModel):
    """A table in the manifest, see `StoredTable`."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=f"^{_NAME.pattern}$")]
    rows: Annotated[int, Field(ge=1)]
    columns: Annotated[int, Field(ge=1)]
    dtype: str
    version: str
    shards: Annotated[tuple[_Shard, ...], Field(min_length=1)]

    def stored(self, ranks: int) -> StoredTable:
        """The table. Raises `ValueError` if its parts contradict each other."""
        if self.dtype not in DTYPES:
            raise ValueError(f"table {self.name} has the type {self.dtype}, not one of {', '.join(DTYPES)}")
        shards = tuple(Shard(**shard.model_dump()) for shard in self.shards)
        row = 0
        for shard in shards:
            inside = all(row <= probe < row + shard.rows for probe, _ in shard.probes)
            if shard.first_row != row or shard.rank >= ranks or not inside:
                raise ValueError(f"table {self.name} has a shard of rank {shard.rank} that does not fit")
            row += shard.rows
        table = Table(self.name, self.rows, self.columns, DTYPES[self.dtype])
        if row != self.rows or len({shard.rank for shard in shards}) < len(shards):
            raise ValueError(f"table {self.name} has other rows than its shards")
        if self.version != _version(table, shards):
            raise ValueError(f"table {self.name} has another version than its shards")
        return StoredTable(table, self.version, shards)


class _Content(BaseModel):
    """The content of the manifest."""

    model_config = ConfigDict(extra="forbid")

    format: Annotated[str, Field(alias="schema")]
    ranks: Annotated[int, Field(ge=1)]
    tables: Annotated[tuple[_Table, ...], Field(min_length=1)]


def _first_problem(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _version(table: Table, shards: Iterable[Shard]) -> str:
    facts = [table.rows, table.columns, dtype_name(table.dtype), [shard.sha256 for shard in shards]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _check(sources: Sequence[Source], ranks: int) -> None:
    if ranks < 1:
        raise UserError("ranks", ranks, "is less than 1", "give the number of processes")
    names = [source.table.name for source in sources]
    for source in sources:
        table = source.table
        if not _NAME.fullmatch(table.name) or names.count(table.name) > 1:
            problem = "is no name of its own of letters, digits, '_', '.' and '-'"
            raise UserError("table", table.name, problem, "rename the table")
        if table.rows < 1 or table.columns < 1:
            shape = (table.rows, table.columns)
            raise UserError(f"table {table.name}", shape, "has no number", "give at least one row and column")
        if table.dtype not in DTYPES.values():
            problem = f"is not one of {', '.join(DTYPES)}"
            raise UserError(f"table {table.name}", dtype_name(table.dtype), problem, "convert it")
    if not sources:
        raise UserError("tables", "none", "leaves the store empty", "give at least one table")


Block = tuple[int, int, int]
"""Rank, first row and number of rows."""


def _row_blocks(sources: Iterable[Source], ranks: int) -> dict[str, list[Block]]:
    """A block for each rank; ranks behind the last row have none."""
    blocks = {}
    for source in sources:
        size = -(-source.table.rows // ranks)
        firsts = range(0, source.table.rows, size)
        blocks[source.table.name] = [
            (rank, first, min(size, source.table.rows - first)) for rank, first in enumerate(firsts)
        ]
    return blocks


def _table_blocks(sources: Iterable[Source], ranks: int) -> dict[str, list[Block]]:
    """Whole tables, the largest first, each to the rank with the fewest bytes."""
    loads, blocks = [0] * ranks, {}
    for source in sorted(sources, key=lambda source: -source.table.rows * source.table.row_bytes):
        rank = loads.index(min(loads))
        loads[rank] += source.table.rows * source.table.row_bytes
        blocks[source.table.name] = [(rank, 0, source.table.rows)]
    return blocks


def _write_table(manifest: Manifest, source: Source, blocks: Sequence[Block]) -> StoredTable:
    shards = [_write_shard(manifest, source, block) for block in blocks]
    stored = StoredTable(source.table, _version(source.table, shards), tuple(shards))
    for shard in shards:
        manifest.path(stored, shard, "json").write_bytes(sealed(stored.label(shard)))
    return stored


def _write_shard(manifest: Manifest, source: Source, block: Block) -> Shard:
    rank, first, count = block
    table, digest = source.table, hashlib.sha256()
    wanted = np.unique(np.linspace(first, first + count - 1, min(PROBES, count)).astype(np.int64)).tolist()
    probes: list[tuple[int, str]] = []
    piece = max(1, _PIECE // table.row_bytes)
    with (manifest.folder / f"{table.name}.{rank}.bin").open("wb") as file:
        for start in range(first, first + count, piece):
            size = min(piece, first + count - start)
            rows = source.read(start, size)
            if rows.shape != (size, table.columns) or rows.dtype != table.dtype:
                value = f"{dtype_name(rows.dtype)} {tuple(rows.shape)}"
                problem = f"is not {dtype_name(table.dtype)} {(size, table.columns)} at row {start}"
                raise UserError(f"table {table.name}", value, problem, "return the rows that are asked for")
            content = as_bytes(rows)
            digest.update(content)
            file.write(content)
            inside = [row for row in wanted if start <= row < start + size]
            probes += [(row, row_digest(rows[row - start])) for row in inside]
    return Shard(rank, first, count, digest.hexdigest(), tuple(probes))


def _plain(shard: Shard) -> dict[str, Any]:
    return asdict(shard) | {"probes": [list(probe) for probe in shard.probes]}


def _entry(stored: StoredTable) -> dict[str, Any]:
    table = asdict(stored.table) | {"dtype": dtype_name(stored.table.dtype)}
    return table | {"version": stored.version, "shards": [_plain(shard) for shard in stored.shards]}
