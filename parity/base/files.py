"""Files of results: whole or absent, and never in the place of another result."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from parity.base.errors import UserError
from parity.base.interruption import stay_if_ending, undone
from parity.base.locks import LOCK, locked, remove_abandoned

_UNFINISHED = re.compile(r"\..+\.\d+\.\d+")
"""Name of a file that is being written."""

MAX_BYTES = 1 << 30
"""Largest file of text that is read into memory."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; the file written there takes its place after the body.

    Missing folders are created. An error in the body leaves `path` as it is, and no new file or folder.
    """
    absent = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with undone(functools.partial(temporary.unlink, missing_ok=True)):
        try:
            yield temporary
            stay_if_ending()
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                for folder in absent:
                    folder.rmdir()
            raise


def read_file(path: Path, most: int = MAX_BYTES) -> bytes:
    """The content of a file.

    Args:
        path: The file.
        most: Largest size in bytes.

    Raises:
        OSError: The file cannot be read, is larger, or is none: the end of a pipe or device may never come.
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
    if size > most:
        raise OSError(errno.EFBIG, f"it has {size} bytes, more than {most}")
    return path.read_bytes()


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
    temporary.mkdir(parents=True, exist_ok=True)
    with locked(temporary), undone(functools.partial(shutil.rmtree, temporary, ignore_errors=True)):
        yield temporary
        stay_if_ending()
        temporary.rename(path)
        (path / LOCK).unlink()


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of writers that were killed. Nobody may write into the folder."""
    for path in folder.rglob(".*"):
        if _UNFINISHED.fullmatch(path.name):
            path.unlink(missing_ok=True)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that does not exist yet; a file with the same content stays.

    Raises:
        UserError: The file exists with other content, or the folder cannot be written.
    """
    try:
        if path.exists():
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
