"""Hostile folders for `serve`: stores of tables, and recorded requests in the benchmark's files."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

from hypothesis import strategies as st

from cases.shipped import load_case
from datasets.dlrmv3.generator import users
from datasets.dlrmv3.streaming import TINY
from tests.datasets.dlrmv3.small import write_folder
from tests.fuzz.attempt import REFUSED, Attempt
from tests.fuzz.saved_folders import sealed_text
from tests.fuzz.values import changed_bytes, changed_documents

CASE = "dlrmv3_tiny"
STORE, FILES = "store", "files"
_COMMAND = ("serve", "--case", CASE, "--precision", "fp32", "--accuracy-only", "--samples", "3")


def make(folder: Path) -> dict[str, Path]:
    """The bases by name; they are written if they are missing."""
    store, files = folder / STORE, folder / FILES
    if not store.exists():
        with load_case(CASE).serving().tables(store, 0):
            pass
    if not files.exists():
        files.mkdir()
        write_folder(files, TINY, {user.number: user for user in users(TINY, range(TINY.num_users))})
    return {STORE: store, FILES: files}


@functools.cache
def _files(base: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(base.iterdir()) if path.is_file()}


@st.composite
def attempts(draw: st.DrawFn, bases: Mapping[str, Path]) -> Attempt:
    """`serve` with a changed file of a store or of recorded requests."""
    name, option = draw(st.sampled_from(((STORE, "--tables"), (STORE, "--tables"), (FILES, "--data"))))
    base, command = _files(bases[name]), (*_COMMAND, option, name)
    path = draw(st.sampled_from(sorted(base)))
    kinds = ("content", "content", "bytes", "drop", "swap", "folder") if name == STORE else ("bytes", "drop")
    kind = draw(st.sampled_from(kinds))
    if kind == "drop":
        return Attempt(command, base=name, removed=(path,), codes=(REFUSED,))
    if kind == "folder":
        return Attempt(command, {f"{name}/{path}": None}, name, codes=(REFUSED,))
    if kind == "swap":
        other = draw(st.sampled_from(sorted(base)))
        codes = (REFUSED,) if base[other] != base[path] else (0, 1, 2)
        return Attempt(command, {f"{name}/{path}": base[other]}, name, codes=codes)
    if kind == "content" and path.endswith(".json"):
        content = json.loads(base[path])["content"]
        text = draw(changed_documents(content))
        return Attempt(command, {f"{name}/{path}": sealed_text(text)}, name)
    data = draw(changed_bytes(base[path]))
    codes = (REFUSED,) if name == STORE and data != base[path] else (0, 1, 2)
    return Attempt(command, {f"{name}/{path}": data}, name, codes=codes)
