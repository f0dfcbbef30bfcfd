"""Criteo text files to rows, on whole blocks of bytes: no line is ever a Python string.

A block is cut at its separators; the fields of a column, wherever they lie, are then read digit by digit, all
rows at once. Every field is checked. Memory is a fixed multiple of the block, however long the file.

Legend: B rows, F fields of a line, M fields that are parsed together.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from datasets.criteo.rows import COLUMNS, MISSING, NUM_DENSE, RawRows, ReadReport, accept_rows
from datasets.errors import DataError

BLOCK_BYTES = 1 << 22
#: What a line may have beyond the block in which it begins. Real lines have some 250 bytes.
MAX_LINE_BYTES = 1 << 16
#: What a message quotes of a field that cannot be read.
_SHOWN_BYTES = 40

_NEWLINE, _RETURN, _MINUS, _POINT, _ZERO = b"\n\r-.0"
_POWERS_OF_TEN = 10.0 ** np.arange(16)  # all exact
_NIBBLE = np.full(256, 255, dtype=np.uint8)
for _digit, _letters in enumerate(zip("0123456789abcdef", "0123456789ABCDEF", strict=True)):
    for _letter in _letters:
        _NIBBLE[ord(_letter)] = _digit


@dataclass(frozen=True)
class Layout:
    """How a text file's lines are divided.

    Attributes:
        separator: the byte between fields.
        num_fields: fields of a line.
        order: for each of ``COLUMNS``, its field.
        header_lines: lines before the first row.
    """

    separator: int
    num_fields: int
    order: tuple[int, ...]
    header_lines: int


#: Kaggle's ``train.txt`` and the Terabyte's ``day_N``.
TABS = Layout(ord("\t"), len(COLUMNS), tuple(range(len(COLUMNS))), header_lines=0)


def open_text(path: Path) -> BinaryIO:
    """Open a file for reading bytes, through gzip where it begins like a gzip file."""
    with path.open("rb") as stream:
        compressed = stream.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if compressed else path.open("rb")


def find_layout(path: Path) -> Layout:
    """Tell the layout from the first line: names separated by commas, or values separated by tabs.

    Raises:
        DataError: it is neither, or a column is missing or there twice.
    """
    with open_text(path) as stream:
        line = stream.readline(MAX_LINE_BYTES).removeprefix(b"\xef\xbb\xbf").strip(b"\r\n")
    if line.count(b"\t") > 1:
        return TABS
    names = [name.strip().strip('"') for name in line.decode("latin-1").split(",")]
    if "label" not in names:
        raise DataError(
            "data",
            str(path),
            "is empty" if not line else f"starts with {line[:60]!r}, which no known format does",
            "give train.txt or day_N (tabs), a CSV with the header label,I1..I13,C1..C26, or parquet",
        )
    wrong = [name for name in COLUMNS if names.count(name) != 1]
    if wrong:
        fix = "give one column for each of label, I1..I13 and C1..C26"
        raise DataError("data", str(path), f"has no column, or more than one, for {', '.join(wrong)}", fix)
    return Layout(ord(","), len(names), tuple(names.index(name) for name in COLUMNS), header_lines=1)


def read_text(path: Path, report: ReadReport) -> Iterator[RawRows]:
    """Yield a text file's rows, a few tens of thousands at a time. Lines end with LF or CR LF.

    Raises:
        DataError: see `find_layout` and `ReadReport`.
    """
    layout = find_layout(path)
    with open_text(path) as stream:
        for _ in range(layout.header_lines):
            stream.readline()
        for block, first_line in _blocks(stream, path, layout.header_lines + 1, report):
            yield parse_block(block, layout, first_line, path, report)


def _blocks(stream: BinaryIO, path: Path, first_line: int, report: ReadReport) -> Iterator[tuple[bytes, int]]:
    """Yield whole lines, and the number of the first of them."""
    while block := stream.read(BLOCK_BYTES):
        block += stream.readline(MAX_LINE_BYTES)
        endless = False
        if not block.endswith(b"\n"):
            rest = stream.readline(MAX_LINE_BYTES)
            if rest:
                # The line does not end where any line should: drop what was read of it, and read to its end.
                block = block[: block.rfind(b"\n") + 1]
                endless = True
                while rest and not rest.endswith(b"\n"):
                    rest = stream.readline(MAX_LINE_BYTES)
            else:
                block += b"\n"
        if block:
            yield block, first_line
        first_line += block.count(b"\n")
        if endless:
            report.add_broken(path, {first_line: f"longer than {MAX_LINE_BYTES} bytes"})
            first_line += 1


def parse_block(block: bytes, layout: Layout, first_line: int, path: Path, report: ReadReport) -> RawRows:
    """Parse whole lines; note the broken ones in ``report`` and return the others' rows."""
    text = np.frombuffer(block, dtype=np.uint8)
    is_end = text == _NEWLINE
    break_at = np.flatnonzero(is_end | (text == layout.separator))
    last_fields = np.flatnonzero(is_end[break_at])
    fields_per_line = np.diff(last_fields, prepend=-1)
    start = np.append(0, break_at[:-1] + 1)
    # A carriage return before the line feed is part of the line's end.
    stop = break_at.copy()
    stop[last_fields] -= (stop[last_fields] > start[last_fields]) & (text[stop[last_fields] - 1] == _RETURN)

    lines = np.arange(first_line, first_line + last_fields.size)
    whole = fields_per_line == layout.num_fields
    torn = {}
    if not whole.all():
        empty = stop[last_fields] == start[last_fields]
        for line in np.flatnonzero(~whole).tolist():
            count = int(fields_per_line[line])
            is_empty = count == 1 and bool(empty[line])
            torn[int(lines[line])] = "empty" if is_empty else f"{count} fields, not {layout.num_fields}"
        kept = np.repeat(whole, fields_per_line)
        start, stop, lines = start[kept], stop[kept], lines[whole]
    order = list(layout.order)
    start_BF = start.reshape(-1, layout.num_fields)[:, order]
    length_BF = stop.reshape(-1, layout.num_fields)[:, order] - start_BF

    decimals = slice(0, 1 + NUM_DENSE)
    numbers, bad_numbers = parse_decimals(text, start_BF[:, decimals], length_BF[:, decimals])
    sparse_BT, bad_sparse = parse_hex(text, start_BF[:, 1 + NUM_DENSE :], length_BF[:, 1 + NUM_DENSE :])
    bad_numbers[:, 0] |= ~np.isin(numbers[:, 0], (0.0, 1.0))
    bad_BF = np.concatenate((bad_numbers, bad_sparse), axis=1)
    problems, found = {}, {}
    for column in np.flatnonzero(bad_BF.any(axis=0)).tolist():
        name = COLUMNS[column]
        problems[name] = bad_BF[:, column]
        begin = start_BF[problems[name], column]
        end = begin + np.minimum(length_BF[problems[name], column], _SHOWN_BYTES)
        fields = zip(begin.tolist(), end.tolist(), strict=True)
        found[name] = [block[first:last].decode("latin-1") for first, last in fields]
    labels_B = np.where(bad_BF[:, 0], 0, numbers[:, 0]).astype(np.uint8)
    rows = RawRows(labels_B, numbers[:, 1:], sparse_BT, lines)
    return accept_rows(path, rows, problems, found, torn, report)


def parse_decimals(text: np.ndarray, start: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read decimal numbers: an optional minus, digits, at most one point among or behind them.

    At most 15 digits, which float64 holds exactly.

    Args:
        text: uint8.
        start: where each field begins, any shape.
        length: its bytes, the same shape; 0 for a gap.

    Returns:
        Values as float64, NaN for gaps; and bool, which fields are no such numbers (their values are
        anything).
    """
    shape, start, length = start.shape, start.ravel(), length.ravel()
    mantissa = np.zeros(start.size, dtype=np.int64)
    digits = np.zeros(start.size, dtype=np.int8)
    decimals = np.zeros(start.size, dtype=np.int8)
    pointed = np.zeros(start.size, dtype=bool)
    bad = length > 17
    present = np.flatnonzero((length > 0) & ~bad)
    negative = np.zeros(start.size, dtype=bool)
    negative[present] = text[start[present]] == _MINUS
    live, position = present, 0
    while live.size:
        letter = text[start[live] + position]
        value = letter - _ZERO  # uint8: whatever lies below "0" wraps far above 9
        is_digit = value <= 9
        one = live if is_digit.all() else live[is_digit]
        mantissa[one] = mantissa[one] * 10 + value[is_digit]
        digits[one] += 1
        decimals[one] += pointed[one]
        if one.size != live.size:
            other, letter = live[~is_digit], letter[~is_digit]
            is_point = (letter == _POINT) & ~pointed[other]
            pointed[other[is_point]] = True
            bad[other] |= ~(is_point | ((letter == _MINUS) & (position == 0)))
        position += 1
        live = live[length[live] > position]
    bad |= (length > 0) & ((digits == 0) | (digits > 15))
    values = np.where(negative, -mantissa, mantissa) / _POWERS_OF_TEN[decimals]
    values[length == 0] = np.nan
    return values.reshape(shape), bad.reshape(shape)


def parse_hex(text: np.ndarray, start: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read hexadecimal numbers of 1 to 8 digits in either case.

    Arguments and the second result are those of `parse_decimals`.

    Returns:
        Values as int64, ``MISSING`` for gaps; and bool, which fields are no such numbers.
    """
    shape, start, length = start.shape, start.ravel(), length.ravel()
    values = np.zeros(start.size, dtype=np.int64)
    bad = length > 8
    live = np.flatnonzero((length > 0) & ~bad)
    for position in range(8):
        nibble = _NIBBLE[text[start[live] + position]]
        bad[live] |= nibble == 255
        values[live] = (values[live] << 4) | (nibble & 15)
        longer = length[live] > position + 1
        live = live if longer.all() else live[longer]
    values[length == 0] = MISSING
    return values.reshape(shape), bad.reshape(shape)
