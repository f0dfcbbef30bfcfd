"""The temporary files of a program and of its processes: one folder, which ends with the program."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path

from parity.base.errors import UserError
from parity.base.interruption import undoing
from parity.base.locks import Locked, locked, remove_abandoned

_PREFIX = "parity-"
_LOCK = ".temporary"
"""Name of the lock's file: another one than that of results, which are never swept."""
_LONGEST = 107 - len("/pymp-12345678/listener-12345678")
"""Longest path of the folder in bytes: the processes' sockets lie below it."""
_LAST = -1000
_lock_of_this_process = contextlib.ExitStack()


def own_temporaries() -> None:
    """Keep all temporary files of this process and its children in a new folder, which ends with the process.

    Folders of programs that were killed are removed first.

    Raises:
        UserError: The folder for temporary files cannot be written, or its path is too long.
    """
    try:
        root = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        named = os.environ.get("TMPDIR", "")
        raise UserError(
            "TMPDIR", named, "cannot be written, nor any other folder", "free space, or set it"
        ) from error
    _sweep(root)
    try:
        folder, remove = _new_folder(root)
    except OSError as error:
        raise UserError(
            "TMPDIR", str(root), f"cannot be written ({error.strerror})", "set it to another folder"
        ) from error
    if len(os.fsencode(folder)) > _LONGEST:
        _lock_of_this_process.close()
        remove()
        raise UserError("TMPDIR", str(root), "is too long for sockets", "set it to a shorter path")
    # Behind the finalizers of multiprocessing, which has its sockets there.
    Finalize(None, remove, exitpriority=_LAST)
    Finalize(None, _lock_of_this_process.close, exitpriority=_LAST + 1)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


def _sweep(root: Path) -> None:
    for folder in root.glob(f"{_PREFIX}*"):
        remove_abandoned(folder, _LOCK)


def _new_folder(root: Path) -> tuple[Path, Callable[[], None]]:
    """A new folder below `root`, locked to the end of this process, and a function that removes it."""
    while True:
        folder = root / f"{_PREFIX}{secrets.token_hex(4)}"
        remove = functools.partial(shutil.rmtree, folder, ignore_errors=True)
        # Before the folder exists, so that an interruption at any moment removes it.
        undoing(remove)
        # Another program may sweep it before its lock is held.
        with contextlib.suppress(Locked, FileNotFoundError):
            folder.mkdir(mode=0o700)
            _lock_of_this_process.enter_context(locked(folder, _LOCK))
            return folder, remove
