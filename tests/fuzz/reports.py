"""Hostile reports: the new one of two, for `compare`; and numbers that no right run has."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.attempt import REFUSED, Attempt
from tests.fuzz.saved_folders import REPORT
from tests.fuzz.values import changed_bytes, changed_documents, places

_ERRORS = ("err_port_l2", "err_port_max")


@functools.cache
def _report(path: Path) -> bytes:
    return (path / "report.json").read_bytes()


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        document = document[part]
    return document


@st.composite
def _forged(draw: st.DrawFn, document: Any) -> tuple[str, tuple[int, ...]]:
    """A report that hides something: an error that is no number, or an entry twice, or one less."""
    kind = draw(st.sampled_from(("error", "double", "drop")))
    if kind == "error":
        path = draw(st.sampled_from([path for path in places(document) if path and path[-1] in _ERRORS]))
        bad = draw(st.sampled_from((float("nan"), float("inf"), -1.0, "NaN", None, 1e300)))
        _at(document, path[:-1])[path[-1]] = bad
        return json.dumps(document), (1, REFUSED)
    lists = ("cases", "precisions", "runners", "modules", "batches")
    path = draw(
        st.sampled_from(
            [
                p
                for p in places(document)
                if len(p) > 1
                and p[-2] in lists
                and isinstance(p[-1], int)
                and isinstance(_at(document, p), dict)
            ]
        )
    )
    owner = _at(document, path[:-1])
    if kind == "double":
        owner.insert(path[-1], json.loads(json.dumps(owner[path[-1]])))
        return json.dumps(document), (REFUSED,)
    del owner[path[-1]]
    return json.dumps(document), (1, REFUSED)


@st.composite
def attempts(draw: st.DrawFn, bases: Mapping[str, Path]) -> Attempt:
    """`compare` with a report beside a right one, in either order."""
    right = _report(bases[REPORT])
    kind = draw(st.sampled_from(("forged", "forged", "document", "document", "document", "bytes", "file")))
    codes: tuple[int, ...] = (0, 1, 2)
    if kind == "forged":
        text, codes = draw(_forged(json.loads(right)))
        other = text.encode()
    elif kind == "document":
        other = draw(changed_documents(json.loads(right))).encode(errors="surrogatepass")
    elif kind == "bytes":
        other = draw(changed_bytes(right))
    else:
        other = draw(
            st.sampled_from(
                (
                    b"",
                    b"{}",
                    b"null",
                    b"[" * 100_000,
                    b'{"cases":' * 50_000,
                    b"\xff\xfe",
                    b"0" * (1 << 20),
                    bytes(1 << 20),
                )
            )
        )
    files = {"new/report.json": other}
    if kind == "forged" or draw(st.booleans()):
        return Attempt(("compare", REPORT, "new/report.json"), files, REPORT, codes=codes)
    return Attempt(("compare", "new", REPORT), files, REPORT)
