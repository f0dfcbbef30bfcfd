"""Traces of a program that has ended: processes, temporary files, damaged files, locks."""

from __future__ import annotations

import ast
import fcntl
import json
import os
import re
import xml.etree.ElementTree as xml
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import safe_open

_UNFINISHED = re.compile(r"\..+(\.\d+\.\d+|\.part|\.unfinished)")
"""Name of a file or a folder that is being written."""


def processes(mark: str) -> list[int]:
    """Ids of the processes whose environment has a mark."""
    ids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                ids.append(int(path.parent.name))
        except OSError:
            continue  # has ended, or belongs to somebody else
    return ids


def unfinished(folder: Path) -> list[str]:
    """Files that somebody began to write and did not finish."""
    paths = folder.rglob(".*") if folder.is_dir() else ()
    return sorted(str(path) for path in paths if _UNFINISHED.fullmatch(path.name))


def _lines(path: Path) -> None:
    # A journal's reader drops an unfinished last line.
    for line in path.read_bytes().split(b"\n")[:-1]:
        json.loads(line)


def _tensors(path: Path) -> None:
    with safe_open(path, framework="np") as file:
        file.keys()


def _archive(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        if archive.testzip():
            raise ValueError("damaged")


def _page(path: Path) -> None:
    if path.name == "report.html" and not path.read_text().rstrip().endswith("</html>"):
        raise ValueError("cut short")


def _source(path: Path) -> None:
    ast.parse(path.read_text())
    if path.name != "__init__.py":
        _text(path)


def _text(path: Path) -> None:
    if not path.read_text().endswith("\n"):
        raise ValueError("cut short")


_READERS: Mapping[str, Callable[[Path], object]] = {
    ".json": lambda path: json.loads(path.read_text()),
    ".jsonl": _lines,
    ".safetensors": _tensors,
    ".pt": _archive,
    ".html": _page,
    ".xml": xml.parse,
    ".py": _source,
    ".md": _text,
    ".yaml": _text,
}


def damaged(folder: Path) -> list[str]:
    """Files under a final name that are not whole."""
    problems = []
    for path in sorted(folder.rglob("*")):
        reader = _READERS.get(path.suffix)
        if path.name.startswith("mlperf_log_"):
            continue  # LoadGen's own: its trace is empty if none is asked for
        # What lies in an unfinished folder has no final name.
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if reader is None or not path.is_file() or hidden:
            continue
        try:
            reader(path)
        except Exception as error:  # noqa: BLE001, whatever is wrong with the file is the finding
            problems.append(f"{path}: {type(error).__name__}: {error}")
    return problems


def held_locks(folder: Path) -> list[str]:
    """Locks below a folder that a process holds."""
    held = []
    for path in folder.rglob(".lock"):
        descriptor = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.append(str(path))
        finally:
            os.close(descriptor)
    return held
