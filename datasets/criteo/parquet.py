"""Criteo parquet files to rows.

Columns have the challenge's names (``label``, ``I1``, ``C1``) or the lecture's (``labels``, ``DENSE_0``,
``SPARSE_0``), in any order. Dense features are numbers; sparse features are whole numbers, or text in
hexadecimal; both may have gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet

from datasets.criteo.rows import COLUMNS, NUM_DENSE, NUM_SPARSE, RawRows, ReadReport, to_rows
from datasets.errors import DataError
from datasets.lines import open_file

LECTURE_COLUMNS = (
    "labels",
    *(f"DENSE_{number}" for number in range(NUM_DENSE)),
    *(f"SPARSE_{number}" for number in range(NUM_SPARSE)),
)
_ROWS_AT_A_TIME = 1 << 15


def is_parquet(path: Path) -> bool:
    """Whether a file begins like a parquet file."""
    with open_file(path) as stream:
        return stream.read(4) == b"PAR1"


def read_parquet(path: Path, report: ReadReport) -> Iterator[RawRows]:
    """Yields a parquet file's rows, a few tens of thousands at a time; the line of a row is its number.

    Raises:
        DataError: a column is missing, or there twice.
        pyarrow.ArrowException: the file is no complete parquet file.
    """
    file = parquet.ParquetFile(path)
    names = _find_columns(path, file.schema_arrow.names)
    first_line = 1
    for batch in file.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=list(names)):
        columns = [_plain(batch.column(name)) for name in names]
        lines_B = np.arange(first_line, first_line + batch.num_rows)
        first_line += batch.num_rows
        yield to_rows(path, columns, lines_B, {}, report)


def _find_columns(path: Path, present: list[str]) -> tuple[str, ...]:
    for names in (COLUMNS, LECTURE_COLUMNS):
        if set(names) <= set(present):
            twice = [name for name in names if present.count(name) > 1]
            if twice:
                problem = f"has more than one column {', '.join(twice)}"
                raise DataError("data", str(path), problem, "give one column of each name")
            return names
    nearer = LECTURE_COLUMNS if "labels" in present else COLUMNS
    missing = ", ".join(name for name in nearer if name not in present)
    fix = "give the columns label, I1..I13, C1..C26, or labels, DENSE_0..12, SPARSE_0..25"
    raise DataError("data", str(path), f"has no column {missing}", fix)


def _plain(column: pyarrow.Array) -> pyarrow.Array:
    # A column of gaps alone has a type of its own.
    column = column.cast("float64") if str(column.type) == "null" else column
    return column.dictionary_decode() if hasattr(column, "dictionary") else column
