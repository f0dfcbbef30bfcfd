"""Hostile data files: click logs as text, CSV and parquet, folders of days, and ratings."""

from __future__ import annotations

import functools
import gzip
import io
from collections.abc import Sequence
from typing import Any

import pyarrow
from hypothesis import strategies as st
from pyarrow import parquet

from datasets.criteo.parquet import LECTURE_COLUMNS
from datasets.criteo.rows import COLUMNS
from tests.fuzz.attempt import REFUSED, Attempt
from tests.fuzz.values import changed_bytes

_ROWS = 12
_CLICKS_CASE = b"""name: clicks
description: x
family: dlrm
model:
  arch_mlp_bot: "13-4"
  arch_mlp_top: "3-1"
  arch_sparse_feature_size: 4
  arch_embedding_size: [%s]
input: {batch_size: 4}
""" % b", ".join([b"5"] * 26)
_HEADER = b"userId,movieId,rating,timestamp"
_BYTES = (
    b"",
    b"\0",
    b"\n",
    b"\t\t",
    b"PAR1",
    b"PAR1PAR1",
    b"\x1f\x8b",
    b"\x1f\x8b\x08" + bytes(20),
    b"label",
    b"x" * (1 << 21),
)


@functools.cache
def _columns() -> dict[str, list[Any]]:
    rows = range(_ROWS)
    columns: dict[str, list[Any]] = {"label": [row % 2 for row in rows]}
    columns |= {f"I{n}": [None if (row + n) % 5 == 0 else row * n for row in rows] for n in range(1, 14)}
    columns |= {f"C{n}": [f"{row * n:08x}" if row % 4 else None for row in rows] for n in range(1, 27)}
    return columns


def _text(separator: str) -> bytes:
    lines = [separator.join(COLUMNS)] if separator == "," else []
    lines += [
        separator.join("" if value is None else str(value) for value in row)
        for row in zip(*_columns().values(), strict=True)
    ]
    return ("\n".join(lines) + "\n").encode()


def _parquet(table: pyarrow.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, **options)
    return buffer.getvalue()


def _other_columns() -> Sequence[pyarrow.Array]:
    """Columns of other types."""
    count, text = list(range(_ROWS)), [str(row) for row in range(_ROWS)]
    types = (
        *(pyarrow.int8(), pyarrow.uint64(), pyarrow.float16(), pyarrow.float64(), pyarrow.decimal128(20, 2)),
        *(pyarrow.timestamp("ns"), pyarrow.date32(), pyarrow.time64("us"), pyarrow.duration("s")),
    )
    numbers = [
        pyarrow.array(count, pyarrow.int64()).cast(pyarrow.int32()).cast(kind, safe=False)
        if kind == pyarrow.date32()
        else _as(count, kind)
        for kind in types
    ]
    return (
        *(column for column in numbers if column is not None),
        *(
            pyarrow.array(text, kind)
            for kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view())
        ),
        *(pyarrow.array(text).dictionary_encode(), pyarrow.array([1] * _ROWS).dictionary_encode()),
        *(pyarrow.array([b"ab"] * _ROWS, kind) for kind in (pyarrow.binary(), pyarrow.binary(2))),
        *(pyarrow.array([value] * _ROWS) for value in _CELLS),
        *(pyarrow.array([2**64 - 1] * _ROWS, pyarrow.uint64()), pyarrow.array([True, None] * (_ROWS // 2))),
        *(pyarrow.nulls(_ROWS), pyarrow.array([None] * _ROWS, pyarrow.int64())),
        pyarrow.array([[("a", 1)]] * _ROWS, pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    )


_CELLS = (
    *(b"\xff\xfe", [1, 2], {"a": 1}, float("nan"), float("inf"), -(2**63), 1e300, -1, "9" * 5000, 2**62, 0.5),
    *(10**15, "", "\0", "\x1b[31m", "x" * 5000),
)


def _as(values: list[int], kind: pyarrow.DataType) -> pyarrow.Array | None:
    try:
        return pyarrow.array(values, kind)
    except (pyarrow.ArrowException, TypeError):
        return None


@st.composite
def _other_parquet(draw: st.DrawFn) -> tuple[bytes, tuple[int, ...]]:
    """A parquet file with other columns, or damaged bytes."""
    columns = {name: pyarrow.array(values) for name, values in _columns().items()}
    if draw(st.booleans()):
        columns = dict(zip(LECTURE_COLUMNS, columns.values(), strict=True))
    names, arrays = list(columns), list(columns.values())
    number = draw(st.integers(0, len(names) - 1))
    kind = draw(
        st.sampled_from(
            ("type", "type", "type", "twice", "drop", "rename", "bytes", "bytes", "empty", "order")
        )
    )
    codes: tuple[int, ...] = (0, 1, 2)
    if kind == "type":
        arrays[number] = draw(st.sampled_from(_other_columns()))
    elif kind == "twice":
        names.append(names[number])
        arrays.append(arrays[(number + 1) % len(arrays)])
        codes = (REFUSED,)
    elif kind == "drop":
        del names[number], arrays[number]
        codes = (REFUSED,)
    elif kind == "rename":
        names[number] = draw(st.sampled_from(("", "x" * 100_000, "a.b", "\0", "\x1b[31m", "é")))
    elif kind == "empty":
        arrays = [array[:0] for array in arrays]
    elif kind == "order":
        names, arrays = names[::-1], arrays[::-1]
    options = draw(
        st.sampled_from(
            (
                {},
                {"compression": "zstd"},
                {"compression": "none"},
                {"use_dictionary": False},
                {"data_page_version": "2.0"},
                {"row_group_size": 5},
                {"write_page_checksum": True},
            )
        )
    )
    content = _parquet(pyarrow.Table.from_arrays(arrays, names=names), **options)
    return (draw(changed_bytes(content)), (0, 1, 2)) if kind == "bytes" else (content, codes)


@st.composite
def _clicks(draw: st.DrawFn) -> tuple[dict[str, bytes | None], tuple[int, ...]]:
    """Files at the path `data`: one file, or a folder of days."""
    form = draw(st.sampled_from(("parquet", "parquet", "text", "csv", "packed", "days", "bytes")))
    if form == "parquet":
        content, codes = draw(_other_parquet())
        return {"data": content}, codes
    if form == "text":
        return {"data": draw(changed_bytes(_text("\t")))}, (0, 1, 2)
    if form == "csv":
        return {"data": draw(changed_bytes(_text(",")))}, (0, 1, 2)
    if form == "packed":
        return {"data": draw(changed_bytes(gzip.compress(_text("\t"), mtime=0)))}, (0, 1, 2)
    if form == "bytes":
        return {"data": draw(st.sampled_from((*_BYTES, None)))}, (0, 1, 2)
    names = draw(st.lists(st.sampled_from(_DAYS), min_size=1, max_size=4, unique=True))
    files: dict[str, bytes | None] = {f"data/{name}": _text("\t") for name in names}
    for name in draw(st.lists(st.sampled_from(sorted(files)), max_size=1)):
        files[name] = draw(st.sampled_from((None, b"", b"x", gzip.compress(_text("\t"))[:-5])))
    numbers = sorted(
        int(name.removeprefix("day_"))
        for name in names
        if name[4:].isdigit() and name.isascii() and len(name) < 11
    )
    gap = bool(numbers) and numbers != list(range(numbers[0], numbers[0] + len(numbers)))
    return files, (REFUSED,) if gap else (0, 1, 2)


_DAYS = (
    "day_0",
    "day_1",
    "day_2",
    "day_3",
    "day_00",
    "day_0.gz",
    "day_-1",
    "day_x",
    "day_" + "9" * 200,
    "day_²",
    "other",
)


def _ratings(layout: str) -> bytes:
    rows = [
        (user, 1 + (user * item) % 40, 1 + item % 5, 880_000_000 + item)
        for user in (1, 2, 3)
        for item in range(1, 8)
    ]
    separator = {"100k": "\t", "1m": "::", "20m": ","}[layout]
    lines = [separator.join(map(str, row)).encode() for row in rows]
    return b"\n".join(([_HEADER] if layout == "20m" else []) + lines) + b"\n"


_FIELDS = (
    b"",
    b"-1",
    b"0",
    b"1.5",
    b"9" * 15,
    b"9" * 16,
    b"9" * 5000,
    b"nan",
    b"inf",
    b"1e3",
    b" 1",
    b"x",
    b"\xff",
    b"\0",
    b"+1",
    b"5.5",
    b"999999",
    b"\xd9\xa1",
    b'"1"',
    b"1\r",
)


@st.composite
def _other_ratings(draw: st.DrawFn) -> bytes:
    layout = draw(st.sampled_from(("100k", "1m", "20m")))
    content = _ratings(layout)
    form = draw(st.sampled_from(("bytes", "field", "field", "file")))
    if form == "bytes":
        return draw(changed_bytes(content))
    if form == "file":
        return draw(
            st.sampled_from((*_BYTES, _HEADER, _HEADER + b"\n", b"1\t1\t1\t1\n", b"1::2", b"\t" * 300))
        )
    lines = content.split(b"\n")
    number = draw(st.integers(0, len(lines) - 2))
    separator = {"100k": b"\t", "1m": b"::", "20m": b","}[layout]
    fields = lines[number].split(separator)
    fields[draw(st.integers(0, len(fields) - 1))] = draw(st.sampled_from(_FIELDS))
    lines[number] = separator.join(fields)
    return b"\n".join(lines)


@st.composite
def attempts(draw: st.DrawFn) -> Attempt:
    """A run, a search or a training on hostile data."""
    verb = draw(st.sampled_from(("run", "run", "run", "precision", "train")))
    options = ("--data", "data", *(("--precision", "fp32") if verb == "run" else ()))
    if verb == "train":
        options += ("--out", "out", "--epochs", "1")
    if draw(st.booleans()):
        files, codes = draw(_clicks())
        files = {**files, "c.yaml": _CLICKS_CASE}
        return Attempt((verb, "--case", "c.yaml", *options), files, codes=codes)
    return Attempt((verb, "--case", "hstu_tiny", *options), {"data": draw(_other_ratings())})
