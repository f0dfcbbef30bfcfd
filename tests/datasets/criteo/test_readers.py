"""Criteo readers: fields against Python's own parsers, formats alike, broken lines with their numbers."""

from __future__ import annotations

import gzip

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from datasets.criteo import rows as criteo_rows
from datasets.criteo.logs import read_rows
from datasets.criteo.parquet import LECTURE_COLUMNS
from datasets.criteo.rows import COLUMNS, MISSING, RawRows, ReadReport
from datasets.errors import DataError
from datasets.lines import Block, cut, parse_decimals, parse_hex

DENSE = ["1", "", "-2", "260", "0", "7", "8", "", "10", "11", "12", "1382", "507333"]
SPARSE = ["05db9164", "", "FFFFFFFF", "0", *(f"{value:08x}" for value in range(1000, 1022))]
FIELDS = ["1", *DENSE, *SPARSE]


def text_line(changes=None, separator="\t"):
    """The sample line with some fields, by column name, changed."""
    fields = dict(zip(COLUMNS, FIELDS, strict=True)) | (changes or {})
    return separator.join(fields.values())


def read(path, max_broken=0):
    report = ReadReport(max_broken)
    parts = list(read_rows([path], report))
    rows = RawRows(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in RawRows.__annotations__)
    )
    return rows, report


def assert_sample_rows(rows, count):
    assert rows.labels_B.tolist() == [1] * count
    expected = [[float(text) if text else np.nan for text in DENSE]] * count
    assert np.array_equal(rows.dense_BD, expected, equal_nan=True)
    assert rows.sparse_BT.tolist() == [[int(text, 16) if text else MISSING for text in SPARSE]] * count


def column_of(texts):
    """Fields as a column of text, by way of the bytes of a file."""
    text = "\n".join(["x,y", *(f"{text},y" for text in texts), ""]).encode("latin-1")
    return cut(Block(text, 1, {}), ",", 2).fields[0][1:]


decimal_texts = st.one_of(
    st.integers(-(10**15) + 1, 10**15 - 1).map(str),
    st.decimals(-99999, 99999, allow_nan=False, places=3).map(str),
    st.text("0123456789.-+e \tabc\x00\xff", max_size=20),
)


def python_decimal(text):
    """The value, or None, by the rule that the parser states, with Python's own float."""
    body = text.removeprefix("-")
    digits = body.replace(".", "", 1)
    plain = digits.isascii() and digits.isdigit() and len(digits) <= 15
    return float(text) if plain else None


@settings(max_examples=300, deadline=None)
@given(st.lists(decimal_texts, min_size=1, max_size=8))
def test_decimals_are_read_as_python_reads_them(texts):
    values, bad = parse_decimals(column_of(texts))
    for text, value, is_bad in zip(texts, values.tolist(), bad.tolist(), strict=True):
        expected = python_decimal(text)
        if text == "":
            assert np.isnan(value)
            assert not is_bad
        else:
            assert is_bad == (expected is None), text
            if expected is not None:
                assert value == expected, text


def test_decimals_have_at_most_fifteen_digits():
    texts = ["123456789012345", "-12345678901234.5", "1234567890123456", "0.123456789012345", "-1.2.3", "1-2"]
    values, bad = parse_decimals(column_of(texts))
    assert bad.tolist() == [False, False, True, True, True, True]
    assert values[:2].tolist() == [123456789012345.0, -12345678901234.5]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text("0123456789abcdefABCDEFg-x \xff", max_size=10), min_size=1, max_size=8))
def test_hexadecimals_are_read_as_python_reads_them(texts):
    values, bad = parse_hex(column_of(texts), MISSING)
    for text, value, is_bad in zip(texts, values.tolist(), bad.tolist(), strict=True):
        if text == "":
            assert (value, is_bad) == (MISSING, False)
        else:
            good = len(text) <= 8 and all(letter in "0123456789abcdefABCDEF" for letter in text)
            assert is_bad != good, text
            if good:
                assert value == int(text, 16), text


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last_ending", [True, False])
def test_tab_separated_lines(tmp_path, ending, last_ending):
    path = tmp_path / "train.txt"
    text = (text_line() + ending) * 3
    path.write_bytes((text if last_ending else text.removesuffix(ending)).encode())
    rows, report = read(path)
    assert_sample_rows(rows, 3)
    assert rows.lines_B.tolist() == [1, 2, 3]
    assert report.rows == 3


def test_a_gap_in_the_last_field_is_no_carriage_return(tmp_path):
    path = tmp_path / "train.txt"
    path.write_bytes((text_line({"C26": ""}) + "\r\n").encode())
    assert read(path)[0].sparse_BT[0, 25] == MISSING


def test_packed_days(tmp_path):
    path = tmp_path / "day_3.gz"
    path.write_bytes(gzip.compress((text_line() + "\n").encode() * 2))
    assert_sample_rows(read(path)[0], 2)


def test_truncated_packed_days_are_refused(tmp_path):
    path = tmp_path / "day_3.gz"
    path.write_bytes(gzip.compress((text_line() + "\n").encode() * 2)[:-20])
    with pytest.raises(DataError, match=r"day_3.gz cannot be read"):
        read(path)


def test_csv_columns_are_found_by_name(tmp_path):
    path = tmp_path / "rows.csv"
    values = dict(zip(COLUMNS, FIELDS, strict=True)) | {"I4": "260.0", "id": "x"}
    names = sorted(values, reverse=True)
    lines = [",".join(names), ",".join(values[name] for name in names)]
    path.write_bytes(b"\xef\xbb\xbf" + "\n".join(lines).encode())
    rows, _ = read(path)
    assert_sample_rows(rows, 1)
    assert rows.lines_B.tolist() == [2]


def test_csv_without_a_column_is_refused(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(",".join(name for name in COLUMNS if name != "C7") + "\n")
    with pytest.raises(DataError, match="has no column, or more than one, for C7"):
        read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"1,2,3\n", r"starts with b'1,2,3', which no known format does"),
        ((text_line(separator=" ") + "\n").encode(), "which no known format does"),
        (",".join(COLUMNS).encode() + b"\n", "has no rows"),
        (
            (text_line() + "\n").encode("utf-16"),
            "is no text in ASCII or UTF-8; unpack it, and write it in UTF-8",
        ),
        (
            (text_line() + "\n").encode("utf-16-le"),
            "is no text in ASCII or UTF-8; unpack it, and write it in UTF-8",
        ),
    ],
)
def test_files_that_are_no_criteo_files_are_refused(tmp_path, content, message):
    path = tmp_path / "train.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(path)


BROKEN = [
    (text_line({"label": "2"}), "label is '2', not 0 or 1"),
    (text_line({"label": ""}), "label is '', not 0 or 1"),
    (text_line({"I5": "1e3"}), "I5 is '1e3', not a number"),
    (text_line({"I2": "-"}), "I2 is '-', not a number"),
    (text_line({"C7": "05db916g"}), "C7 is '05db916g', not a hexadecimal number of at most 8 digits"),
    (text_line({"C7": "105db9164"}), "C7 is '105db9164', not a hexadecimal number of at most 8 digits"),
    (text_line({"I1": "x", "C1": "y"}), "I1 is 'x', not a number"),
    (text_line() + "\t", "41 fields, not 40"),
    ("", "empty"),
    ("\t".join(FIELDS[:-1]), "39 fields, not 40"),
]


def test_every_broken_line_is_reported_with_its_number(tmp_path):
    path = tmp_path / "train.txt"
    lines = [text_line()]
    for broken, _ in BROKEN:
        lines += [broken, text_line()]
    path.write_text("\n".join(lines) + "\n")
    rows, report = read(path, max_broken=len(BROKEN))
    assert_sample_rows(rows, len(BROKEN) + 1)
    assert rows.lines_B.tolist() == list(range(1, 2 * len(BROKEN) + 2, 2))
    expected = [f"train.txt line {2 * number + 2}: {reason}" for number, (_, reason) in enumerate(BROKEN)]
    assert [str(line) for line in report.broken] == expected
    assert report.describe() == f"11 rows, 10 broken lines: {'; '.join(expected)}"
    with pytest.raises(
        DataError, match=r"has 10 broken lines \(train.txt line 2: label is '2'.*; and more\)"
    ):
        read(path, max_broken=9)


def test_blocks_may_be_cut_anywhere(tmp_path, monkeypatch):
    path = tmp_path / "train.txt"
    lines = [text_line({"I1": str(number)}) for number in range(40)]
    lines[17] = "torn"
    lines[30] = text_line({"C26": "?"})
    path.write_text("\n".join(lines) + "\n")
    expected = [float(number) for number in range(40) if number not in (17, 30)]
    for size in (1, 7, 250, 251, 1000, 1 << 20):
        monkeypatch.setattr("datasets.lines.BLOCK_BYTES", size)
        rows, report = read(path, max_broken=2)
        assert rows.dense_BD[:, 0].tolist() == expected
        assert [line.line for line in report.broken] == [18, 31]


def test_lines_without_an_end_do_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.lines.BLOCK_BYTES", 500)
    monkeypatch.setattr("datasets.lines.MAX_LINE_BYTES", 400)
    path = tmp_path / "train.txt"
    path.write_text("\n".join([text_line(), text_line(), "9" * 5000, text_line(), "8" * 3000]))
    rows, report = read(path, max_broken=2)
    assert_sample_rows(rows, 3)
    assert rows.lines_B.tolist() == [1, 2, 4]
    assert [str(line) for line in report.broken] == [
        "train.txt line 3: longer than 400 bytes",
        "train.txt line 5: longer than 400 bytes",
    ]


def test_hopeless_files_are_given_up_early(tmp_path, monkeypatch):
    monkeypatch.setattr(criteo_rows, "_HOPELESS", 3)
    path = tmp_path / "train.txt"
    path.write_text("a\tb\tc\n" * 50)
    with pytest.raises(DataError, match=r"has at least 4 broken lines"):
        read(path)


def write_parquet(path, names=COLUMNS, repeat=2, **columns):
    values = {"label": [1] * repeat}
    for name, text in zip(COLUMNS[1:], FIELDS[1:], strict=True):
        base = 16 if name.startswith("C") else 10
        values[name] = [int(text, base) if text else None] * repeat
    values |= columns
    table = {name: values[column] for name, column in zip(names, COLUMNS, strict=True)}
    parquet.write_table(pa.table(dict(sorted(table.items()))), path)
    return path


@pytest.mark.parametrize("names", [COLUMNS, LECTURE_COLUMNS], ids=["challenge", "lecture"])
def test_parquet_of_numbers(tmp_path, names):
    rows, _ = read(write_parquet(tmp_path / "rows.parquet", names))
    assert_sample_rows(rows, 2)


def test_parquet_of_text_and_of_floats(tmp_path):
    texts = {name: [text or None] * 2 for name, text in zip(COLUMNS[14:], SPARSE, strict=True)}
    texts["C1"] = pa.array(texts["C1"]).dictionary_encode()
    texts["C3"] = pa.array(texts["C3"], type=pa.large_string())
    floats = {"I1": [1.0, 1.0], "I2": [float("nan"), None], "C4": [0.0, 0.0], "label": [True, True]}
    assert_sample_rows(read(write_parquet(tmp_path / "rows.parquet", **(texts | floats)))[0], 2)
    sparse = {"C2": [float("nan"), None], "C5": [1000.0, 1000.0]}
    assert_sample_rows(read(write_parquet(tmp_path / "rows.parquet", **sparse))[0], 2)


def test_broken_parquet_rows_are_reported_with_their_number(tmp_path, monkeypatch):
    path = write_parquet(
        tmp_path / "rows.parquet",
        repeat=6,
        label=[1, None, 1, 1, 1, 3],
        I4=[260.0, 260.0, float("inf"), 260.0, 260.0, 260.0],
        C1=["05db9164"] * 3 + ["no hex"] + ["05db9164"] * 2,
        C5=[1000, 1000, 1000, 1000, -7, 1000],
    )
    monkeypatch.setattr("datasets.criteo.parquet._ROWS_AT_A_TIME", 2)
    rows, report = read(path, max_broken=5)
    assert_sample_rows(rows, 1)
    assert [(line.line, line.reason.partition(", not")[0]) for line in report.broken] == [
        (2, "label is 'None'"),
        (3, "I4 is 'inf'"),
        (4, "C1 is 'no hex'"),
        (5, "C5 is '-7'"),
        (6, "label is '3'"),
    ]


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (pa.timestamp("ns"), r"timestamp\[ns\]"),
        (pa.date64(), r"date(32\[day\]|64\[ms\])"),
        (pa.decimal128(25, 2), r"decimal128\(25, 2\)"),
    ],
    ids=["time", "date", "decimal"],
)
def test_values_of_other_types_are_no_numbers(tmp_path, kind, shown):
    columns = {name: pa.array([1]) for name in COLUMNS} | {"I3": pa.array([1]).cast(kind, safe=False)}
    parquet.write_table(pa.table(columns), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=rf"I3 is of type {shown}, not a number"):
        read(tmp_path / "rows.parquet")


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    names = [*COLUMNS, "C7"]
    table = pa.Table.from_arrays([pa.array([1])] * len(names), names=names)
    parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="has more than one column C7; give one column of each name"):
        read(tmp_path / "rows.parquet")


def test_parquet_without_a_column_or_a_whole_file_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({name: [1] for name in COLUMNS if name != "I9"}), path)
    with pytest.raises(DataError, match="has no column I9; give the columns label"):
        read(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"rows.parquet cannot be read"):
        read(path)
