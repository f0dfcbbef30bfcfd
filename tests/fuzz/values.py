"""Hostile values, and changes of documents and bytes, which all kinds of files share."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

_DEEP = 100_000
_STACK = (200, 500, 800, 900, 940, 970, 985)
"""Depths near the end of Python's stack: some code reads such a value, and other code fails at it."""
_LONG = 1 << 20
NUMBERS = (
    *("0", "-1", "1", "2", "7", "1000", "2147483647", "2147483648", "4294967296"),
    *("9223372036854775807", "9223372036854775808", "18446744073709551616", "1" + "0" * 30, "9" * 5000),
    *("1.5", "-0.0", "1e308", "1e999", "1e-320", "NaN", "Infinity", "-Infinity"),
)
"""Numbers in JSON, as Python reads it."""
TEXTS = (
    *(
        "",
        "x",
        " ",
        "..",
        ".",
        "/",
        "a/b",
        "../../x",
        "/proc/self/mem",
        "~",
        "-",
        "--help",
        "NaN",
        "1",
        "true",
    ),
    *(
        "\0",
        "a\0b",
        "\x1b[31mred",
        "\r\n",
        "a\nb\nc\nd\ne\nf\ng\nh",
        "\ud800",
        "\u202eabc",
        "é" * 100,
        "x" * 300,
    ),
    *("x" * 5000, "x" * _LONG, "[bold]x[/]", "{}", "%s", "cases.shipped:from_values", "os:system", "fp32"),
)
RAW_VALUES = (
    *NUMBERS,
    *map(json.dumps, TEXTS),
    *("null", "true", "false", "[]", "{}", "[1, 2, 3]", '{"a": 1, "a": 2}', "[[[]]]", '{"": null}'),
    *("[" * depth + "]" * depth for depth in _STACK),
    *('{"a":' * depth + "1" + "}" * depth for depth in _STACK),
    *("[" * 60 + "]" * 60, "[" * _DEEP + "]" * _DEEP, "[" * _DEEP, '{"a":' * 2000 + "1" + "}" * 2000),
    *(
        "[" + "1," * 50_000 + "1]",
        "[NaN]",
        '["x", null]',
        "01",
        "+1",
        "1e",
        "nul",
        "'x'",
        "}",
        ",",
        '"\\u12"',
    ),
)
"""Values as text of JSON, some of it no JSON."""

_MARK = "@@raw@@"
_RAW = json.dumps(_MARK)


def places(document: Any) -> Iterator[tuple[Any, ...]]:
    """The paths of all values of a document, the document's own first.

    A document may be deeper than Python's stack: Python from 3.12 on reads such JSON.
    """
    rest: list[tuple[tuple[Any, ...], Any]] = [((), document)]
    while rest:
        path, value = rest.pop()
        yield path
        entries: list[tuple[Any, Any]] = []
        if isinstance(value, dict):
            entries = list(value.items())
        elif isinstance(value, list):
            entries = list(enumerate(value))
        rest += [((*path, key), entry) for key, entry in reversed(entries)]


@st.composite
def changed_documents(draw: st.DrawFn, document: Any, raw: tuple[str, ...] = RAW_VALUES) -> str:
    """JSON of a document with one to three changes of values and entries."""
    text = json.dumps(document)
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        kind = draw(st.sampled_from(("value", "value", "drop", "double", "add", "rename")))
        value = draw(st.sampled_from(raw))
        try:
            copy = json.loads(text)
            path = draw(st.sampled_from(list(itertools.islice(places(copy), 4000))))
            text = _changed(copy, path, kind, value)
        except (ValueError, RecursionError):
            # JSON that Python itself reads or writes no more has no further change.
            return text
    return text


def _changed(document: Any, path: tuple[Any, ...], kind: str, raw: str) -> str:
    if not path:
        return (
            raw
            if kind == "value"
            else json.dumps([document, document] if kind == "double" else {"x": document})
        )
    owner = document
    for part in path[:-1]:
        owner = owner[part]
    last = path[-1]
    if kind == "drop":
        del owner[last]
    elif kind == "double":
        if isinstance(owner, list):
            owner.insert(last, owner[last])
        else:
            # A second key of the same name.
            owner[last] = {_MARK: owner[last]}
            return _twice(json.dumps(document), last)
    elif kind == "rename" and isinstance(owner, dict):
        owner[raw[:40]] = owner.pop(last)
    elif kind == "add" and isinstance(owner, dict):
        owner["another"] = _MARK
    else:
        owner[last] = _MARK
    return json.dumps(document).replace(_RAW, raw)


def _twice(text: str, key: str) -> str:
    """JSON in which the entry with the mark stands twice."""
    start = text.index("{" + _RAW + ": ")
    begin = start + len(_RAW) + 3
    value, end = json.JSONDecoder().raw_decode(text, begin)
    return f"{text[:start]}{json.dumps(value)}, {json.dumps(key)}: {json.dumps(value)}{text[end + 1 :]}"


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes, changes: int = 3) -> bytes:
    """Bytes with flipped bits, a cut end, or parts that are missing, doubled, zeroed or foreign."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, changes))):
        kind = draw(st.sampled_from(("flip", "flip", "cut", "drop", "double", "zero", "insert", "replace")))
        size = len(data)
        # A share of the size: the draws of one seed are the same beside files of another length.
        at = draw(st.integers(0, (1 << 32) - 1)) * size >> 32
        until = min(size, at + draw(st.sampled_from((1, 2, 4, 8, 64, 1024))))
        if kind == "flip" and size:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[at:]
        elif kind == "drop":
            del data[at:until]
        elif kind == "double":
            data[at:at] = data[at:until]
        elif kind == "zero":
            data[at:until] = bytes(until - at)
        else:
            end = at if kind == "insert" else until
            data[at:end] = draw(st.sampled_from(_FOREIGN))
    return bytes(data)


_FOREIGN = (
    *(
        b"\0",
        b"\xff\xff\xff\xff",
        b"\xff" * 8,
        b"\x7f" + b"\xff" * 7,
        b"\n",
        b"\r",
        b"\t",
        b",",
        b"::",
        b'"',
        b"\xef\xbb\xbf",
    ),
    *(
        b"\xc3\x28",
        b"\xed\xa0\x80",
        b"9" * 40,
        b"-",
        b"nan",
        b"PAR1",
        b"PK\x03\x04",
        b"\x80\x02",
        b"{",
        b"[" * 2000,
        b"x" * 70_000,
    ),
)
