"""Rows of Criteo files before any preprocessing, and the account of broken lines.

Legend: B rows, D = 13 dense features, T = 26 sparse features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow

from datasets.errors import DataError
from datasets.lines import parse_decimals, parse_hex

NUM_DENSE = 13
NUM_SPARSE = 26
#: The names of the challenge. Files with a header and parquet files have them in any order.
COLUMNS = (
    "label",
    *(f"I{number}" for number in range(1, NUM_DENSE + 1)),
    *(f"C{number}" for number in range(1, NUM_SPARSE + 1)),
)
#: The mark of a gap among the sparse features, whose values are never negative.
MISSING = -1
#: The number of broken lines after which reading stops at once, unless more are allowed.
_HOPELESS = 1000
_SHOWN_LINES = 5
#: Characters of a broken field that a message quotes.
_SHOWN_CHARACTERS = 40
_NUMBER_TYPES = ("bool", "int8", "int16", "int32", "int64", "halffloat", "float", "double")


@dataclass(frozen=True)
class RawRows:
    """Rows of a file before any preprocessing.

    Attributes:
        labels_B: (B,) uint8, 0 or 1.
        dense_BD: (B, 13) float64; NaN where the file has a gap.
        sparse_BT: (B, 26) int64, the hexadecimal values as numbers; ``MISSING`` where the file has a gap.
        lines_B: (B,) int64, the number of each row's line from 1 on; in parquet, of the row.
    """

    labels_B: np.ndarray
    dense_BD: np.ndarray
    sparse_BT: np.ndarray
    lines_B: np.ndarray

    def __len__(self) -> int:
        return self.labels_B.size


@dataclass(frozen=True)
class BrokenLine:
    """A line that gives no row.

    Attributes:
        file: the name of the file.
        line: the number of the line, counted from 1.
        reason: the reason why it gives no row.
    """

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} line {self.line}: {self.reason}"


@dataclass
class ReadReport:
    """The account of the lines of all files. Readers fill it while they are iterated.

    Attributes:
        max_broken: the largest number of broken lines that is no error.
        rows: the number of rows.
        broken: all broken lines, in the order of the files.
    """

    max_broken: int = 0
    rows: int = 0
    broken: list[BrokenLine] = field(default_factory=list)

    def add_broken(self, path: Path, reasons: Mapping[int, str]) -> None:
        """Notes broken lines by number.

        Raises:
            DataError: more lines are broken than ``max_broken`` and ``_HOPELESS``.
        """
        for line, reason in sorted(reasons.items()):
            self.broken.append(BrokenLine(path.name, line, reason))
            if len(self.broken) > max(self.max_broken, _HOPELESS):
                self._raise(path, "at least ")

    def check(self, paths: Sequence[Path]) -> None:
        """Judges the account after the end of the last file.

        Raises:
            DataError: more lines are broken than ``max_broken``, or there are no rows.
        """
        if len(self.broken) > self.max_broken:
            self._raise(paths[0] if len(paths) == 1 else paths[0].parent, "")
        if self.rows == 0:
            shown = ", ".join(str(path) for path in paths)
            raise DataError("data", shown, "has no rows", "give Criteo files that are complete")

    def describe(self) -> str:
        """One line for a report: the number of rows, and all broken lines."""
        if not self.broken:
            return f"{self.rows} rows, no broken lines"
        lines = "line" if len(self.broken) == 1 else "lines"
        return f"{self.rows} rows, {len(self.broken)} broken {lines}: {'; '.join(map(str, self.broken))}"

    def _raise(self, path: Path, how_exact: str) -> None:
        shown = "; ".join(map(str, self.broken[:_SHOWN_LINES]))
        more = "; and more" if len(self.broken) > _SHOWN_LINES else ""
        lines = "line" if len(self.broken) == 1 else "lines"
        fix = "correct or remove them"
        if self.rows == 0 and len(self.broken) > 1:
            fix = "give Criteo logs, or name a case that reads these data"
        raise DataError(
            "data", str(path), f"has {how_exact}{len(self.broken)} broken {lines} ({shown}{more})", fix
        )


def to_rows(
    path: Path,
    columns: Sequence[pyarrow.Array],
    lines_B: np.ndarray,
    torn: Mapping[int, str],
    report: ReadReport,
) -> RawRows:
    """Turns columns into rows, and counts rows and broken lines in the report.

    Args:
        path: the file.
        columns: in the order of ``COLUMNS``, each (B,): text or numbers.
        lines_B: (B,) the line of each row.
        torn: the lines that give no row, each with the reason.
        report: the account of the lines.

    Returns:
        The rows in which every field can be read.
    """
    reasons = dict(torn)
    good_B = np.ones(len(lines_B), dtype=bool)
    numbers, sparse = [], []
    for name, column in zip(COLUMNS, columns, strict=True):
        is_sparse = name.startswith("C")
        values_B, bad_B = _whole_numbers(column) if is_sparse else _numbers(column)
        if name == "label":
            bad_B = ~np.isin(values_B, (0.0, 1.0))
        for row in np.flatnonzero(bad_B).tolist():
            reasons.setdefault(int(lines_B[row]), f"{name} is {_shown(column[row])}, not {_expected(name)}")
        good_B &= ~bad_B
        (sparse if is_sparse else numbers).append(values_B)
    report.rows += int(good_B.sum())
    report.add_broken(path, reasons)
    labels_B, dense_BD = numbers[0], np.stack(numbers[1:], axis=1)
    sparse_BT = np.stack(sparse, axis=1)
    if not good_B.all():
        labels_B, dense_BD, sparse_BT = labels_B[good_B], dense_BD[good_B], sparse_BT[good_B]
        lines_B = lines_B[good_B]
    return RawRows(labels_B.astype(np.uint8), dense_BD, sparse_BT, lines_B)


def _shown(value: pyarrow.Scalar) -> str:
    # Python has no equal of some types, such as times in nanoseconds, and pandas changes others.
    if not (_is_text(value) or _is_number(value) or str(value.type) == "null"):
        return f"of type {value.type}"[:_SHOWN_CHARACTERS]
    return repr(str(value.as_py())[:_SHOWN_CHARACTERS])


def _numbers(column: pyarrow.Array) -> tuple[np.ndarray, np.ndarray]:
    """(B,) float64, NaN for a gap; (B,) bool, True for a field that is no finite number."""
    if _is_text(column):
        return parse_decimals(column)
    if not _is_number(column):
        return np.zeros(len(column)), np.ones(len(column), dtype=bool)
    # A gap among booleans, which labels may be, is None.
    values_B = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return values_B, np.isinf(values_B)


def _whole_numbers(column: pyarrow.Array) -> tuple[np.ndarray, np.ndarray]:
    """(B,) int64, ``MISSING`` for a gap; (B,) bool, True for a field that is no number from 0 on."""
    if _is_text(column):
        return parse_hex(column, MISSING)
    if not _is_number(column):
        return np.zeros(len(column), dtype=np.int64), np.ones(len(column), dtype=bool)
    is_gap_B = column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    values_B = column.fill_null(0).to_numpy(zero_copy_only=False)
    if values_B.dtype.kind == "f":
        # A data frame stores a column with gaps as floats.
        values_B = np.where(is_gap_B, 0, values_B)
        bad_B = (values_B != np.floor(values_B)) | (values_B < 0) | (values_B > 2**53)
    else:
        bad_B = (values_B < 0) | (values_B > np.iinfo(np.int64).max)
    return np.where(is_gap_B, MISSING, np.where(bad_B, 0, values_B).astype(np.int64)), bad_B


def _is_text(column: pyarrow.Array | pyarrow.Scalar) -> bool:
    return str(column.type) in ("string", "large_string", "binary", "large_binary")


def _is_number(column: pyarrow.Array | pyarrow.Scalar) -> bool:
    return str(column.type).removeprefix("u") in _NUMBER_TYPES


def _expected(column: str) -> str:
    if column == "label":
        return "0 or 1"
    return "a number" if column.startswith("I") else "a hexadecimal number of at most 8 digits"
