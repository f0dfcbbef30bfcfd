"""Files of results: whole or absent, and never in the place of another result."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parity.base.errors import UserError
from parity.base.interruption import stay_if_ending, undone
from parity.base.locks import LOCK, locked, made, remove_abandoned

_UNFINISHED = re.compile(r"\.(.+)\.(\d+)\.\d+")
"""Name of a file that is being written: its final name, and the ids of the writing process and thread."""

MAX_DEPTH = 100
"""Most levels of JSON."""
_TOO_DEEP = f"it has more than {MAX_DEPTH} levels"
MAX_BYTES = 1 << 30
"""Largest file of text that is read into memory."""


def called_in(folder: Path, path: Path) -> Path:
    """The path of an option of a call in a folder, which code of a case may have left since."""
    return path if Path.cwd() == folder else folder / path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; the file written there takes its place after the body.

    Missing folders are created. An error in the body leaves `path` as it is, and no new file or folder.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with made(path.parent), undone(functools.partial(temporary.unlink, missing_ok=True)):
        yield temporary
        stay_if_ending()
        temporary.replace(path)


def size_of(path: Path) -> int:
    """The size of a file in bytes.

    Raises:
        OSError: There is none, or it is a folder, pipe or device, whose end may never come.
    """
    try:
        mode, size = path.stat().st_mode, path.stat().st_size
    except ValueError as error:
        # A path with NUL.
        raise OSError(errno.EINVAL, str(error)) from error
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    return size


def read_file(path: Path, most: int = MAX_BYTES) -> bytes:
    """The content of a file.

    Args:
        path: The file.
        most: Largest size in bytes.

    Raises:
        OSError: The file cannot be read, is larger, or is none, see `size_of`.
    """
    size = size_of(path)
    if size > most:
        raise OSError(errno.EFBIG, f"it has {size} bytes, more than {most}")
    return path.read_bytes()


def parse_json(text: str | bytes) -> Any:
    """The content of JSON that is not too deep for code that walks through it.

    Raises:
        ValueError: The text is no JSON, deeper than `MAX_DEPTH`, or an object has a name twice: readers would
            differ in the entry that they take.
    """
    try:
        content = json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    level = [content] if isinstance(content, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
        level = [value for value in level if isinstance(value, (dict, list))]
        if not level:
            return content
    raise ValueError(_TOO_DEEP)


def _unique(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(entries)
    if len(content) < len(entries):
        raise ValueError("an object has a name twice")
    return content


@contextlib.contextmanager
def making(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path`, which takes this name after the body. Missing parents are created.

    An error in the body leaves no folder. The folder of a process that was killed is removed first.

    Raises:
        FileExistsError: `path` exists.
        Locked: Another process makes it.
    """
    temporary = path.with_name(f".{path.name}.unfinished")
    remove_abandoned(temporary, LOCK)
    if path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    remove = functools.partial(shutil.rmtree, temporary, ignore_errors=True)
    with made(temporary), locked(temporary), undone(remove):
        yield temporary
        stay_if_ending()
        temporary.rename(path)
        (path / LOCK).unlink()


def remove_unfinished(folder: Path, mark: str) -> None:
    """Remove the temporary files of writers that were killed. Nobody may write into the folder.

    Args:
        folder: The folder.
        mark: Name of the first file of a folder of results. A folder with other files and without this one
            belongs to somebody else, and stays as it is.

    Raises:
        OSError: The folder cannot be read or written.
    """
    names = {path.name for path in folder.iterdir()} - {LOCK}
    if mark not in names and not all(map(_UNFINISHED.fullmatch, names)):
        return
    for path in folder.rglob(".*"):
        if _UNFINISHED.fullmatch(path.name):
            path.unlink(missing_ok=True)


def remove_unfinished_of(path: Path) -> None:
    """Remove the temporary files of one file whose writers were killed. Others may write into its folder."""
    for temporary in path.parent.glob(".*"):
        name = _UNFINISHED.fullmatch(temporary.name)
        if name is not None and name[1] == path.name and not _is_alive(int(name[2])):
            temporary.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def write_new(path: Path, content: bytes) -> None:
    """Write a file that does not exist yet; a file with the same content stays.

    Raises:
        UserError: The file exists with other content, or the folder cannot be written.
    """
    try:
        if path.exists() or path.is_symlink():
            if path.is_file() and path.read_bytes() == content:
                return
            raise UserError(
                "output", str(path), "exists with other content", "remove it, or choose another folder"
            )
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise UserError(
            "output",
            str(path),
            f"cannot be written ({error.strerror})",
            "choose a folder that you can write to",
        ) from error
