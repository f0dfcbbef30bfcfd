"""Folders of results: made, and locked, so that one process at a time writes. The dead hold no lock."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from parity.base.interruption import undone

LOCK = ".lock"
"""Name of the lock's file in the folder."""


class Locked(Exception):
    """The folder is in use.

    Args:
        holder: Process id of its user; empty if the file does not tell.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(f"is in use by process {holder or 'of unknown id'}")


@contextlib.contextmanager
def made(folder: Path) -> Iterator[None]:
    """Make a folder if it is missing. Folders that are new and empty behind the body are removed.

    Raises:
        OSError: The folder cannot be made.
    """
    absent = [path for path in (folder, *folder.parents) if not path.exists()]

    def remove() -> None:
        # A folder that holds anything stays, and with it all above. The innermost one may not have been made.
        for path in absent:
            with contextlib.suppress(OSError):
                path.rmdir()

    with undone(remove):
        folder.mkdir(parents=True, exist_ok=True)
        yield


@contextlib.contextmanager
def locked(folder: Path, lock: str = LOCK) -> Iterator[None]:
    """Hold the lock of an existing folder in the body.

    Args:
        folder: The folder.
        lock: Name of the lock's file in it.

    Raises:
        Locked: Another process, or another part of this one, holds it.
        OSError: The folder cannot be written.
    """
    path = folder / lock
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Locked(os.read(descriptor, 20).decode(errors="replace").strip()) from error
        if os.fstat(descriptor).st_nlink == 0:
            # Its holder has removed it, and a new holder may have made another.
            raise Locked("")
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        with undone(functools.partial(path.unlink, missing_ok=True)):
            yield
    finally:
        os.close(descriptor)


def remove_abandoned(folder: Path, lock: str) -> None:
    """Remove a folder that has a lock which no process holds. Nobody can take the lock meanwhile."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / lock, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
