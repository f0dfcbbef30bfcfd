"""Faults of the shard of rank 1 of the table `item`, with the words that name them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.tables.stores import manifest_of, numbers, relabel, store


def missing(folder, other):
    (folder / "item.1.bin").unlink()


def missing_entry(folder, other):
    (folder / "item.1.json").unlink()


def damaged_entry(folder, other):
    (folder / "item.1.json").write_text("{}")


def swapped(folder, other):
    for suffix in ("bin", "json"):
        shutil.copy(folder / f"item.0.{suffix}", folder / f"item.1.{suffix}")


def another_table(folder, other):
    for suffix in ("bin", "json"):
        shutil.copy(folder / f"category.1.{suffix}", folder / f"item.1.{suffix}")


def swapped_rows(folder, other):
    shutil.copy(folder / "item.0.bin", folder / "item.1.bin")


def one_row_up(folder, other, step=18):
    path = folder / "item.1.bin"
    content = path.read_bytes()
    path.write_bytes(content[step:] + content[:step])


def one_row_down(folder, other):
    one_row_up(folder, other, -18)


def another_first_row(folder, other):
    relabel(folder / "item.1.json", lambda content: content.update(first_row=content["first_row"] + 1))


def stale(folder, other):
    for suffix in ("bin", "json"):
        shutil.copy(other / f"item.1.{suffix}", folder / f"item.1.{suffix}")


def stale_rows(folder, other):
    shutil.copy(other / "item.1.bin", folder / "item.1.bin")


def another_type(folder, other):
    relabel(folder / "item.1.json", lambda content: content.update(dtype="bfloat16"))


def wider_type(folder, other):
    path = folder / "item.1.bin"
    path.write_bytes(path.read_bytes() * 2)


def one_bit(folder, other):
    # In a row between two probes.
    content = bytearray((folder / "item.1.bin").read_bytes())
    probes = {row for row, _ in manifest_of(folder)["tables"][0]["shards"][1]["probes"]}
    first = manifest_of(folder)["tables"][0]["shards"][1]["first_row"]
    row = next(row for row in range(first, 101) if row not in probes) - first
    content[18 * row] ^= 1
    (folder / "item.1.bin").write_bytes(bytes(content))


FAULTS = {
    missing: "is missing",
    missing_entry: "is missing",
    damaged_entry: "has a damaged entry",
    swapped: "is swapped: it is the shard of rank 0",
    another_table: "is swapped: it is a shard of table category",
    swapped_rows: "is swapped: it has the rows of rank 0, table item",
    one_row_up: "is off by one row: its rows are one place in front of their own",
    one_row_down: "is off by one row: its rows are one place behind their own",
    another_first_row: "is off by 1 rows",
    stale: "is stale: of version",
    stale_rows: "is stale or damaged",
    another_type: "is of another type: bfloat16, not float16",
    wider_type: "rows are missing, or of another type",
    one_bit: "is stale or damaged",
}


def store_with(fault: Callable[[Path, Path], None], folder: Path) -> Path:
    """A store of two ranks with a fault; another version of its tables is at hand."""
    # An even number of rows, so that both ranks have as many.
    tables = numbers() | {"item": numbers()["item"][:100]}
    others = {name: rows.flip(1) for name, rows in tables.items()}
    damaged = store(folder / "s", tables, 2)
    fault(damaged, store(folder / "other", others, 2))
    return damaged
