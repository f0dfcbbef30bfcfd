"""Text files in blocks of whole lines, and blocks cut into columns by pyarrow.

Memory is a fixed multiple of a block, whatever the length of the file or of a line.

Legend: B whole lines of a block.
"""

from __future__ import annotations

import codecs
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow
import pyarrow.compute
from pyarrow import csv

#: Bytes that are read at a time.
BLOCK_BYTES = 1 << 21
#: The largest length in bytes of the part of a line beyond the block in which the line begins.
MAX_LINE_BYTES = 1 << 16

#: A carriage return inside a line. pyarrow would take it for the line's end.
_NO_TEXT = pyarrow.array([], pyarrow.string())
_SHOWN_RETURN = "\N{SYMBOL FOR CARRIAGE RETURN}".encode()


#: The first bytes of packed files, by the program that unpacks them.
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}


def not_text(first_line: bytes) -> str:
    """The problem of a first line that is packed, marked or in another encoding; empty for any other one."""
    for start, program in _PACKED.items():
        if first_line.startswith(start):
            return f"is packed with {program}"
    # Digits, letters and tabs have a zero at every other place of UTF-16.
    zeros = first_line.count(b"\0") / max(1, len(first_line))
    if first_line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or 1 / 3 < zeros < 2 / 3:
        return "is no text in ASCII or UTF-8"
    if first_line.startswith(codecs.BOM_UTF8):
        return "begins with a byte order mark"
    return ""


def unknown_format(first_line: bytes) -> str:
    """The problem of a file that no reader knows by its first line, in words."""
    return f"starts with {first_line[:60]!r}, which no known format does" if first_line else "is empty"


def open_file(path: Path) -> BinaryIO:
    """Opens a file for reading bytes.

    Raises:
        OSError: there is none, or it is a pipe or a device, whose end may never come.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is no regular file")
    return path.open("rb")


@dataclass(frozen=True)
class Block:
    """Whole lines, each with a line feed at its end.

    Attributes:
        text: the bytes of the lines.
        first_line: the number of the first line, counted from 1.
        too_long: the number of a line behind the block that exceeds ``MAX_LINE_BYTES``, with the reason.
    """

    text: bytes
    first_line: int
    too_long: dict[int, str]


@dataclass(frozen=True)
class Columns:
    """The fields of a block.

    Attributes:
        fields: a column of B strings for each field of a line.
        lines_B: (B,) int64, the number of each whole line.
        torn: the lines with another number of fields: by line, that number; 0 for an empty line.
    """

    fields: list[pyarrow.StringArray]
    lines_B: np.ndarray
    torn: dict[int, int]


def blocks(stream: BinaryIO, first_line: int) -> Iterator[Block]:
    """Yields the lines of a file from its position on. Lines end with LF or CR LF.

    Args:
        stream: the file.
        first_line: the number of the line at the position, counted from 1.
    """
    while text := stream.read(BLOCK_BYTES):
        text += stream.readline(MAX_LINE_BYTES)
        too_long = False
        if not text.endswith(b"\n"):
            rest = stream.readline(MAX_LINE_BYTES)
            if rest:
                too_long = True
                text = text[: text.rfind(b"\n") + 1]
                while rest and not rest.endswith(b"\n"):
                    rest = stream.readline(MAX_LINE_BYTES)
            else:
                text += b"\n"
        next_line = first_line + text.count(b"\n")
        reasons = {next_line: f"longer than {MAX_LINE_BYTES} bytes"} if too_long else {}
        yield Block(text, first_line, reasons)
        first_line = next_line + len(reasons)


def cut(block: Block, separator: str, num_fields: int) -> Columns:
    """Cuts lines into fields.

    Args:
        block: the lines; bytes beyond ASCII become the characters of Latin-1.
        separator: the character between fields.
        num_fields: the number of fields of a whole line.
    """
    text, count = block.text, block.text.count(b"\n")
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    if not text.isascii():
        text = text.decode("latin-1").encode()
    text = text.replace(b"\r", _SHOWN_RETURN)
    torn: dict[int, int] = {}

    def note(row: Any) -> str:
        torn[block.first_line + row.number - 1] = row.actual_columns
        return "skip"

    names = [str(number) for number in range(num_fields)]
    # Without threads, pyarrow numbers the rows. A text of no bytes is an error to it.
    read = csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names)
    parse = csv.ParseOptions(
        delimiter=separator, quote_char=False, ignore_empty_lines=False, invalid_row_handler=note
    )
    convert = csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()), check_utf8=False)
    if text:
        columns = csv.read_csv(pyarrow.BufferReader(text), read, parse, convert).combine_chunks().columns
    else:
        columns = [pyarrow.chunked_array([], pyarrow.string())] * num_fields
    lines = np.arange(block.first_line, block.first_line + count)
    lines_B = np.delete(lines, np.array(list(torn), dtype=np.int64) - block.first_line)
    fields = [pyarrow.concat_arrays(column.chunks or [_NO_TEXT]) for column in columns]
    if text.startswith(b"\n") or b"\n\n" in text:
        # To pyarrow, an empty line has as many empty fields as any other.
        ends = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n"))
        empty = lines[np.diff(ends, prepend=-1) == 1]
        torn |= dict.fromkeys(empty.tolist(), 0)
        whole_B = ~np.isin(lines_B, empty)
        lines_B, fields = lines_B[whole_B], [field.filter(pyarrow.array(whole_B)) for field in fields]
    return Columns(fields, lines_B, torn)


def parse_decimals(column: pyarrow.Array) -> tuple[np.ndarray, np.ndarray]:
    """Decimal numbers: an optional minus, 1 to 15 digits, at most one point before, among or behind them.

    Args:
        column: (B,) text; a gap is null or empty.

    Returns:
        (B,) float64, NaN for a gap and for a field that is no such number; (B,) bool, True for such a field.
    """
    length_B = _lengths(column)
    is_gap_B = length_B == 0
    good_B = _matches(column, "^-?[0-9]{1,15}$")
    if not (good_B | is_gap_B).all():
        length_B = length_B - _matches(column, "^-")
        good_B |= _matches(column, r"^-?[0-9]*\.[0-9]*$") & (length_B >= 2) & (length_B <= 16)
    return _numbers(column, good_B, np.float64, np.nan), ~(good_B | is_gap_B)


def parse_naturals(column: pyarrow.Array) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers of 1 to 15 digits.

    Args:
        column: (B,) text.

    Returns:
        (B,) int64, 0 for a field that is no such number; (B,) bool, True for such a field.
    """
    good_B = _matches(column, "^[0-9]{1,15}$")
    return _numbers(column, good_B, np.int64, 0), ~good_B


def parse_hex(column: pyarrow.Array, gap: int) -> tuple[np.ndarray, np.ndarray]:
    """Hexadecimal numbers of 1 to 8 digits in either case.

    Args:
        column: (B,) text; a gap is null or empty.
        gap: the value of a gap.

    Returns:
        (B,) int64, ``gap`` for a gap and anything for a field that is no such number; (B,) bool, True for
        such a field.
    """
    length_B = _lengths(column)
    values_B = np.full(len(column), gap, dtype=np.int64)
    is_gap_B = length_B == 0
    if (is_gap_B | (length_B == 8)).all() and (numbers := _hex_of_8(column)) is not None:
        values_B[~is_gap_B] = numbers
        return values_B, np.zeros(len(column), dtype=bool)
    good_B = _matches(column, "^[0-9A-Fa-f]{1,8}$")
    digits = column.filter(pyarrow.array(good_B)).cast(pyarrow.string())
    numbers = pyarrow.compute.binary_join_element_wise("0x", digits, "").cast(pyarrow.uint32())
    values_B[good_B] = numbers.to_numpy(zero_copy_only=False)
    return values_B, ~(good_B | is_gap_B)


def _hex_of_8(column: pyarrow.Array) -> np.ndarray | None:
    """The numbers of a column whose fields have 8 digits or none; None where one has another character."""
    column = column.drop_null()
    _, offsets, text = column.cast(pyarrow.binary()).buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    digits = memoryview(text or b"")[bounds[0] : bounds[-1]]
    try:
        packed = bytes.fromhex(str(digits, "ascii"))
    except ValueError:
        return None
    # `fromhex` skips blanks.
    return np.frombuffer(packed, dtype=">u4") if 2 * len(packed) == len(digits) else None


def _matches(column: pyarrow.Array, pattern: str) -> np.ndarray:
    matches = pyarrow.compute.match_substring_regex(column, pattern)
    return matches.fill_null(False).to_numpy(zero_copy_only=False)


def _numbers(column: pyarrow.Array, good_B: np.ndarray, dtype: type[np.generic], other: float) -> np.ndarray:
    """The good fields as numbers, and ``other`` in the place of the rest."""
    digits = column.filter(pyarrow.array(good_B)).cast(pyarrow.string())
    values_B = np.full(len(column), other, dtype)
    values_B[good_B] = digits.cast(pyarrow.from_numpy_dtype(dtype)).to_numpy(zero_copy_only=False)
    return values_B


def _lengths(column: pyarrow.Array) -> np.ndarray:
    length = pyarrow.compute.binary_length(column)
    return length.fill_null(0).to_numpy(zero_copy_only=False)
