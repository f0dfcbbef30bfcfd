"""Writing results: whole or not at all, and never over something else."""

from __future__ import annotations

import os
from pathlib import Path

from parity.base.errors import UserError


def write_new(path: Path, content: bytes) -> None:
    """Writes a file that does not exist yet, or leaves it alone where it already has this content.

    The content goes to a temporary file beside it first, so that no reader ever sees a part of it.
    Missing folders are made.

    Raises:
        UserError: the file exists with other content, or the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            if path.is_file() and path.read_bytes() == content:
                return
            raise UserError(
                "output", str(path), "exists with other content", "remove it, or choose another folder"
            )
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            "output",
            str(path),
            f"cannot be written ({error.strerror})",
            "choose a folder that you can write to",
        ) from error
