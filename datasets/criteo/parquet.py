"""Criteo parquet files to rows. Needs pyarrow, which nothing else of the harness does.

Columns have the challenge's names (``label``, ``I1``, ``C1``) or the lecture's (``labels``, ``DENSE_0``,
``SPARSE_0``), in any order. Dense features are numbers; sparse features are whole numbers, or text in
hexadecimal; both may have gaps.

Legend: B rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from datasets.criteo.rows import COLUMNS, MISSING, NUM_DENSE, NUM_SPARSE, RawRows, ReadReport, accept_rows
from datasets.criteo.text import parse_decimals, parse_hex
from datasets.errors import DataError

LECTURE_COLUMNS = (
    "labels",
    *(f"DENSE_{number}" for number in range(NUM_DENSE)),
    *(f"SPARSE_{number}" for number in range(NUM_SPARSE)),
)
_ROWS_AT_A_TIME = 1 << 15
_NUMBERS = ("bool", "int8", "int16", "int32", "int64", "halffloat", "float", "double")


def is_parquet(path: Path) -> bool:
    """Whether a file begins like a parquet file."""
    with path.open("rb") as stream:
        return stream.read(4) == b"PAR1"


def read_parquet(path: Path, report: ReadReport) -> Iterator[RawRows]:
    """Yield a parquet file's rows, a few tens of thousands at a time; broken lines are numbered by row.

    Raises:
        DataError: pyarrow is not installed, the file is no parquet file, or a column is missing.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:  # also where pyarrow is there, but not made for the numpy that is
        problem = f"is parquet, which needs pyarrow ({error})"
        raise DataError("data", str(path), problem, "pip install pyarrow, or give a text file") from error
    try:
        file = parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise DataError("data", str(path), f"cannot be read ({error})", "give a complete file") from error
    names = _find_columns(path, file.schema_arrow.names)
    first_line = 1
    for batch in file.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=list(names)):
        rows = _to_rows(path, [batch.column(name) for name in names], first_line, report)
        first_line += batch.num_rows
        yield rows


def _find_columns(path: Path, present: list[str]) -> tuple[str, ...]:
    for names in (COLUMNS, LECTURE_COLUMNS):
        if set(names) <= set(present):
            return names
    nearer = LECTURE_COLUMNS if "labels" in present else COLUMNS
    missing = ", ".join(name for name in nearer if name not in present)
    fix = "give the columns label, I1..I13, C1..C26, or labels, DENSE_0..12, SPARSE_0..25"
    raise DataError("data", str(path), f"has no column {missing}", fix)


def _to_rows(path: Path, columns: list[Any], first_line: int, report: ReadReport) -> RawRows:
    dense, sparse, problems, found = [], [], {}, {}
    for name, column in zip(COLUMNS, columns, strict=True):
        is_sparse = name.startswith("C")
        values_B, bad_B = _sparse(column) if is_sparse else _decimal(column)
        if name == "label":
            bad_B = bad_B | ~np.isin(values_B, (0.0, 1.0))
        if bad_B.any():
            problems[name] = bad_B
            found[name] = [str(column[row].as_py()) for row in np.flatnonzero(bad_B).tolist()]
        (sparse if is_sparse else dense).append(values_B)
    lines_B = np.arange(first_line, first_line + len(columns[0]))
    labels_B = np.where(problems.get("label", False), 0, dense[0]).astype(np.uint8)
    rows = RawRows(labels_B, np.stack(dense[1:], axis=1), np.stack(sparse, axis=1), lines_B)
    return accept_rows(path, rows, problems, found, {}, report)


def _decimal(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Values as float64, NaN for gaps, and which are bad."""
    column = _plain(column)
    if _is_text(column):
        return parse_decimals(*_fields(column))
    if not _is_number(column):
        return np.zeros(len(column)), np.ones(len(column), dtype=bool)
    # Gaps arrive as NaN, or among booleans, which labels may be, as None.
    values_B = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return values_B, np.isinf(values_B)


def _sparse(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """Values as int64, ``MISSING`` for gaps, and which are bad."""
    column = _plain(column)
    if _is_text(column):
        return parse_hex(*_fields(column))
    if not _is_number(column):
        return np.zeros(len(column), dtype=np.int64), np.ones(len(column), dtype=bool)
    gaps_B = column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    values_B = column.fill_null(0).to_numpy(zero_copy_only=False)
    if values_B.dtype.kind == "f":
        # Where a data frame had gaps, whole numbers were stored as floats.
        values_B = np.where(gaps_B, 0, values_B)
        bad_B = (values_B != np.floor(values_B)) | (values_B < 0) | (values_B > 2**53)
    else:
        bad_B = (values_B < 0) | (values_B > np.iinfo(np.int64).max)
    return np.where(gaps_B, MISSING, np.where(bad_B, 0, values_B).astype(np.int64)), bad_B


def _plain(column: Any) -> Any:
    # A column of gaps alone has a type of its own.
    column = column.cast("float64") if str(column.type) == "null" else column
    return column.dictionary_decode() if hasattr(column, "dictionary") else column


def _is_text(column: Any) -> bool:
    return str(column.type) in ("string", "large_string", "binary", "large_binary")


def _is_number(column: Any) -> bool:
    return str(column.type).removeprefix("u") in _NUMBERS


def _fields(column: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A text column as the bytes of all its values, each value's start, and each value's length."""
    _, offsets, text = column.buffers()
    width = np.int64 if str(column.type).startswith("large") else np.int32
    bounds = np.frombuffer(offsets, dtype=width)[column.offset : column.offset + len(column) + 1]
    gaps_B = column.is_null().to_numpy(zero_copy_only=False)
    length_B = np.where(gaps_B, 0, np.diff(bounds)).astype(np.int64)
    return np.frombuffer(text or b"", dtype=np.uint8), bounds[:-1].astype(np.int64), length_B
