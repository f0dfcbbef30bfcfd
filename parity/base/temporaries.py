"""The temporary files of a program and of its processes: one folder, which ends with the program."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
import time
from multiprocessing.util import Finalize
from pathlib import Path

from parity.base.errors import UserError
from parity.base.interruption import undoing
from parity.base.locks import is_abandoned, locked

_PREFIX = "parity-"
_LONGEST = 107 - len("/pymp-12345678/listener-12345678")
"""Longest path of the folder in bytes: the processes' sockets lie below it."""
_YOUNG = 10.0
"""Age in seconds below which a folder's lock may not be taken yet."""
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
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    except OSError as error:
        raise UserError(
            "TMPDIR", str(root), f"cannot be written ({error.strerror})", "set it to another folder"
        ) from error
    remove = functools.partial(shutil.rmtree, folder, ignore_errors=True)
    if len(os.fsencode(folder)) > _LONGEST:
        remove()
        raise UserError("TMPDIR", str(root), "is too long for sockets", "set it to a shorter path")
    undoing(remove)
    # Behind the finalizers of multiprocessing, which has its sockets there.
    Finalize(None, remove, exitpriority=_LAST)
    Finalize(None, _lock_of_this_process.close, exitpriority=_LAST + 1)
    _lock_of_this_process.enter_context(locked(folder))
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


def _sweep(root: Path) -> None:
    for folder in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _YOUNG and is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)
