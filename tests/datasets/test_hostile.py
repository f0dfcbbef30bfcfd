"""Hostile files: each is one error with the line's number and the reason, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tracemalloc
from pathlib import Path

import pyarrow
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from cases.dlrm import recorded as dlrm
from cases.hstu import recorded as hstu
from datasets import lines
from datasets.criteo.logs import recognises as recognises_criteo
from datasets.criteo.rows import COLUMNS
from datasets.criteo.text import find_layout
from datasets.errors import DataError
from datasets.movielens import read_ratings
from datasets.movielens import recognises as recognises_ratings
from parity.base.errors import UserError
from reference import train

RATING = b"1\t2\t3\t4"
CLICK = b"\t".join([b"1", *[b"5"] * 13, *[b"05db9164"] * 26])
LONG = b"9" * 10_000_000
BOM = b"\xef\xbb\xbf"


def _lines(place: str, bad: bytes, good: bytes) -> tuple[bytes, int]:
    """A file of five lines with a bad one, and the number of that line."""
    number = {"first": 1, "middle": 3, "last": 5}[place]
    rows = [good] * 5
    rows[number - 1] = bad
    return b"\n".join(rows) + b"\n", number


RATINGS = {
    "nul": (b"1\t2\x00\t3\t4", "a field is not a number, or negative"),
    "three fields": (b"1\t2\t3", "not four fields"),
    "five fields": (b"1\t2\t3\t4\t5", "not four fields"),
    "beyond int64": (b"1\t9223372036854775808\t3\t4", "a field is not a number, or negative"),
    "negative": (b"-1\t2\t3\t4", "a field is not a number, or negative"),
    "hexadecimal": (b"0x1\t2\t3\t4", "a field is not a number, or negative"),
    "carriage return": (b"1\t2\r\t3\t4", "a field is not a number, or negative"),
    "quotes": (b'"1\t2\t3\t4', "a field is not a number, or negative"),
    "not UTF-8": (b"1\t\xff\t3\t4", "a field is not a number, or negative"),
}
CLICKS = {
    "nul": (CLICK.replace(b"05db9164", b"05db\x0064", 1), "C1 is '05db\\x0064', not a hexadecimal number"),
    "39 fields": (CLICK.rpartition(b"\t")[0], "39 fields, not 40"),
    "41 fields": (CLICK + b"\t", "41 fields, not 40"),
    "beyond 32 bits": (CLICK + b"0", "C26 is '05db91640', not a hexadecimal number of at most 8 digits"),
    "beyond int64": (CLICK.replace(b"\t5", b"\t9223372036854775808", 1), "I1 is '9223372036854775808', not"),
    "negative value": (CLICK[:-8] + b"-5db9164", "C26 is '-5db9164', not a hexadecimal number"),
    "blanks": (CLICK[:-8] + b"05 b9 64", "C26 is '05 b9 64', not a hexadecimal number"),
    "prefix": (CLICK[:-8] + b"0x5db916", "C26 is '0x5db916', not a hexadecimal number"),
    "infinity": (CLICK.replace(b"\t5\t", b"\tinf\t", 1), "I1 is 'inf', not a number"),
    "carriage return": (CLICK[:-8] + b"05\rb9164", "C26 is '05␍b9164', not a hexadecimal number"),
    "not UTF-8": (CLICK[:-8] + b"05db916\xff", "C26 is '05db916ÿ', not a hexadecimal number"),
}  # fmt: skip


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("name", RATINGS)
def test_a_broken_rating_has_its_line(tmp_path, name, place):
    bad, reason = RATINGS[name]
    text, number = _lines(place, bad, RATING)
    path = tmp_path / "u.data"
    path.write_bytes(text)
    with pytest.raises(UserError) as caught:
        hstu.read(path)
    message = f"data: {path} has 1 broken line (line {number}: {reason}); correct or remove them"
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("name", CLICKS)
def test_a_broken_click_has_its_line(tmp_path, name, place):
    bad, reason = CLICKS[name]
    text, number = _lines(place, bad, CLICK)
    path = tmp_path / "train.txt"
    path.write_bytes(text)
    with pytest.raises(UserError) as caught:
        dlrm.read(path)
    assert f"data: {path} has 1 broken line (train.txt line {number}: {reason}" in str(caught.value)


@pytest.mark.parametrize(
    ("case", "name", "text", "message"),
    [
        ("hstu_tiny", "u.data", b"", "is empty; give MovieLens"),
        ("hstu_tiny", "u.data", BOM + RATING + b"\n", "begins with a byte order mark; give MovieLens"),
        ("hstu_tiny", "u.data", b"\0" * 100, "which no known format does"),
        ("hstu_tiny", "u.data", RATING + b"\n" + LONG, "(line 2: longer than 65536 bytes)"),
        ("hstu_tiny", "u.data", b"1\t2\t3\n" + RATING, "(line 1: not four fields)"),
        ("dlrm_kaggle", "train.txt", b"", "is empty; give train.txt"),
        ("dlrm_kaggle", "train.txt", b"\0" * 100, "which no known format does"),
        ("dlrm_kaggle", "train.txt", CLICK + b"\n" + LONG, "(train.txt line 2: longer than 65536 bytes)"),
        ("dlrm_kaggle", "train.txt", BOM + CLICK + b"\n", "(train.txt line 1: label is 'ï»¿1', not 0 or 1)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_program_ends_with_one_message_and_exit_code_2(tmp_path, case, name, text, message):
    path = tmp_path / name
    path.write_bytes(text)
    arguments = ["--case", case, "--data", str(path), "--out", str(tmp_path / "out")]
    ended = CliRunner().invoke(train.main, arguments)
    assert ended.exit_code == 2, ended.output
    assert ended.stderr.startswith(f"error: data: {path} "), ended.stderr
    assert message in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_byte_order_mark_and_crlf_before_a_header(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_bytes(b"userId,movieId,rating,timestamp\r\n1,2,3.5,4\r\n")
    assert read_ratings(path).ratings.tolist() == [3]
    path.write_bytes(BOM + path.read_bytes())
    with pytest.raises(DataError, match="begins with a byte order mark; give .* in UTF-8 without a mark"):
        read_ratings(path)


@pytest.mark.parametrize("damage", ["no footer", "length of the footer", "data"])
def test_a_damaged_parquet_file_is_refused(tmp_path, damage):
    path = tmp_path / "rows.parquet"
    names = dict.fromkeys(COLUMNS, [1] * 5)
    parquet.write_table(pyarrow.table(names), path, compression="gzip")
    content = path.read_bytes()
    damaged = {
        "no footer": content[:400],
        "length of the footer": content[:-8] + b"\xff\xff\xff\x7f" + content[-4:],
        "data": content[:4] + b"\xff" * 400 + content[404:],
    }[damage]
    path.write_bytes(damaged)
    with pytest.raises(
        UserError, match=r"^data: .*rows.parquet cannot be read .*; give Criteo files that are"
    ):
        dlrm.read(path)


def test_a_long_line_is_not_held(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1 << 16)
    path = tmp_path / "u.data"
    path.write_bytes(RATING + b"\n" + LONG + b"\n" + RATING + b"\n" + LONG)
    tracemalloc.start()
    try:
        with pytest.raises(
            DataError, match=r"has 2 broken lines \(line 2: longer than 65536 bytes; line 4: longer"
        ):
            read_ratings(path)
        assert tracemalloc.get_traced_memory()[1] < len(LONG) / 4
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", [b"", b"\0", b"\n" * 100, b"\r" * 100, LONG, b"\t" * 10_000, BOM])
def test_no_reader_recognises_rubbish(tmp_path, text):
    path: Path = tmp_path / "rubbish"
    path.write_bytes(text)
    assert not recognises_ratings(path)
    assert not recognises_criteo(path)


RATINGS_TEXT = b"1\t2\t3\t4\n" * 99


@pytest.mark.parametrize(
    ("read", "packed", "problem"),
    [
        # The reader of clicks unpacks gzip by itself.
        (read_ratings, gzip.compress(RATINGS_TEXT, mtime=0), "is packed with gzip"),
        (read_ratings, b"\x1f\x8b\t::\t\t\n", "is packed with gzip"),
        *(
            (read, packed, problem)
            for read in (read_ratings, find_layout)
            for packed, problem in (
                (bz2.compress(RATINGS_TEXT), "is packed with bzip2"),
                (lzma.compress(RATINGS_TEXT), "is packed with xz"),
                ("userId,movieId,rating,timestamp\n".encode("utf-16"), "is no text in ASCII or UTF-8"),
            )
        ),
    ],
)
def test_a_packed_file_or_another_encoding_is_named(tmp_path, read, packed, problem):
    path = tmp_path / "data"
    path.write_bytes(packed)
    with pytest.raises(DataError) as refused:
        read(path)
    assert str(refused.value).startswith(f"data: {path} {problem}; ")
    assert "UTF-8" in refused.value.fix
