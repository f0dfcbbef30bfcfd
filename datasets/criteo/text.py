"""Criteo text files to rows: tabs, or a CSV file with a header; unpacked or in gzip."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from datasets import lines
from datasets.criteo.rows import COLUMNS, RawRows, ReadReport, to_rows
from datasets.errors import DataError


@dataclass(frozen=True)
class Layout:
    """The columns of a text file.

    Attributes:
        separator: the character between fields.
        num_fields: the number of fields of a line.
        order: the place of the field of each of ``COLUMNS``.
        header_lines: the number of lines before the first row.
    """

    separator: str
    num_fields: int
    order: tuple[int, ...]
    header_lines: int


#: Kaggle's ``train.txt`` and the Terabyte's ``day_N``.
TABS = Layout("\t", len(COLUMNS), tuple(range(len(COLUMNS))), header_lines=0)


def open_text(path: Path) -> BinaryIO:
    """Opens a file for reading bytes, through gzip if it begins like a gzip file."""
    with path.open("rb") as stream:
        compressed = stream.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if compressed else path.open("rb")


def find_layout(path: Path) -> Layout:
    """The layout of a file by its first line: names separated by commas, or values separated by tabs.

    Raises:
        DataError: the line is neither, or of another encoding, or a column is missing or there twice.
    """
    with open_text(path) as stream:
        line = stream.readline(lines.MAX_LINE_BYTES).removeprefix(b"\xef\xbb\xbf").strip(b"\r\n")
    if problem := lines.not_text(line):
        raise DataError("data", str(path), problem, "unpack it, and write it in UTF-8")
    if line.count(b"\t") > 1:
        return TABS
    names = [name.strip().strip('"') for name in line.decode("latin-1").split(",")]
    if "label" not in names:
        raise DataError(
            "data",
            str(path),
            lines.unknown_format(line),
            "give train.txt or day_N (tabs), a CSV with the header label,I1..I13,C1..C26, or parquet",
        )
    wrong = [name for name in COLUMNS if names.count(name) != 1]
    if wrong:
        fix = "give one column for each of label, I1..I13 and C1..C26"
        raise DataError("data", str(path), f"has no column, or more than one, for {', '.join(wrong)}", fix)
    return Layout(",", len(names), tuple(names.index(name) for name in COLUMNS), header_lines=1)


def read_text(path: Path, report: ReadReport) -> Iterator[RawRows]:
    """Yields a text file's rows, a few tens of thousands at a time. Lines end with LF or CR LF.

    Raises:
        DataError: see `find_layout` and `ReadReport`.
    """
    layout = find_layout(path)
    with open_text(path) as stream:
        for _ in range(layout.header_lines):
            stream.readline()
        for block in lines.blocks(stream, layout.header_lines + 1):
            columns = lines.cut(block, layout.separator, layout.num_fields)
            torn = {
                line: f"{count} fields, not {layout.num_fields}" if count else "empty"
                for line, count in columns.torn.items()
            }
            fields = [columns.fields[place] for place in layout.order]
            yield to_rows(path, fields, columns.lines_B, torn | block.too_long, report)
