"""What every Criteo reader gives: rows as they stand in the file, and an account of the lines that could not
be read.

Legend: B rows, D = 13 dense features, T = 26 sparse features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from datasets.errors import DataError

NUM_DENSE = 13
NUM_SPARSE = 26
#: The challenge's names; files with a header, and parquet files, may hold them in any order.
COLUMNS = (
    "label",
    *(f"I{number}" for number in range(1, NUM_DENSE + 1)),
    *(f"C{number}" for number in range(1, NUM_SPARSE + 1)),
)
#: How a gap among the sparse features is marked; values are never negative.
MISSING = -1
#: Broken lines after which reading stops at once, where fewer are allowed: such a file is no Criteo file.
_HOPELESS = 1000
_SHOWN_LINES = 5


@dataclass(frozen=True)
class RawRows:
    """Rows as they stand in the file, before any preprocessing.

    Attributes:
        labels_B: (B,) uint8, 0 or 1.
        dense_BD: (B, 13) float64; NaN where the file has a gap.
        sparse_BT: (B, 26) int64, the hexadecimal values as numbers; ``MISSING`` where the file has a gap.
        lines_B: (B,) int64, each row's line in its file, the first one 1 (in parquet: its row).
    """

    labels_B: np.ndarray
    dense_BD: np.ndarray
    sparse_BT: np.ndarray
    lines_B: np.ndarray

    def __len__(self) -> int:
        return self.labels_B.size


@dataclass(frozen=True)
class BrokenLine:
    """A line that gives no row: where it is, and what is wrong with it."""

    file: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} line {self.line}: {self.reason}"


@dataclass
class ReadReport:
    """What became of the lines that were read. Readers fill it while they are iterated.

    Attributes:
        max_broken: how many broken lines are accepted; one more is a ``DataError``.
        rows: rows given out.
        broken: every broken line, in the order of the files.
    """

    max_broken: int = 0
    rows: int = 0
    broken: list[BrokenLine] = field(default_factory=list)

    def add_broken(self, path: Path, reasons: Mapping[int, str]) -> None:
        """Note broken lines by number; raise at once where they are too many to be worth reading on."""
        for line, reason in sorted(reasons.items()):
            self.broken.append(BrokenLine(path.name, line, reason))
            if len(self.broken) > max(self.max_broken, _HOPELESS):
                self._raise(path, "at least ")

    def check(self, paths: Sequence[Path]) -> None:
        """To be called when all of ``paths`` is read.

        Raises:
            DataError: more lines are broken than ``max_broken``, or there are no rows.
        """
        if len(self.broken) > self.max_broken:
            self._raise(paths[0] if len(paths) == 1 else paths[0].parent, "")
        if self.rows == 0:
            shown = ", ".join(str(path) for path in paths)
            raise DataError("data", shown, "has no rows", "give Criteo files that are complete")

    def describe(self) -> str:
        """One line for a report: rows, broken lines, and the number of each of them."""
        if not self.broken:
            return f"{self.rows} rows, no broken lines"
        lines = "line" if len(self.broken) == 1 else "lines"
        return f"{self.rows} rows, {len(self.broken)} broken {lines}: {'; '.join(map(str, self.broken))}"

    def _raise(self, path: Path, how_exact: str) -> None:
        shown = "; ".join(map(str, self.broken[:_SHOWN_LINES]))
        more = "; and more" if len(self.broken) > _SHOWN_LINES else ""
        lines = "line" if len(self.broken) == 1 else "lines"
        raise DataError(
            "data",
            str(path),
            f"has {how_exact}{len(self.broken)} broken {lines} ({shown}{more})",
            f"correct or remove them, or allow more than {self.max_broken} with max_broken",
        )


def accept_rows(
    path: Path,
    rows: RawRows,
    problems: dict[str, np.ndarray],
    found: dict[str, list[str]],
    torn: dict[int, str],
    report: ReadReport,
) -> RawRows:
    """Divide parsed rows into those to give out and those to report.

    Args:
        path: the file.
        rows: all parsed rows; bad fields hold anything.
        problems: for each column that has any, (B,) bool, where its field cannot be read.
        found: for each of these columns, what stands in its bad fields, in order.
        torn: lines that gave no row at all, and why.
        report: where rows are counted, and broken lines noted.

    Returns:
        The rows without problems.
    """
    bad_B = np.zeros(len(rows), dtype=bool)
    reasons = dict(torn)
    for column, wrong_B in problems.items():
        for line, text in zip(rows.lines_B[wrong_B].tolist(), found[column], strict=True):
            reasons.setdefault(line, f"{column} is {text!r}, not {_expected(column)}")
        bad_B |= wrong_B
    report.add_broken(path, reasons)
    if bad_B.any():
        good = ~bad_B
        rows = RawRows(rows.labels_B[good], rows.dense_BD[good], rows.sparse_BT[good], rows.lines_B[good])
    report.rows += len(rows)
    return rows


def _expected(column: str) -> str:
    if column == "label":
        return "0 or 1"
    return "a number" if column.startswith("I") else "a hexadecimal number of at most 8 digits"
