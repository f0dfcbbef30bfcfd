"""Writing results: whole or not at all, and never over something else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from parity.errors import UserError


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
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            # mkstemp makes files private to the owner; results are as readable as any other new file.
            os.chmod(temporary, 0o666 & ~_umask())
            # A link fails where a file appeared in the meantime; a rename would write over it.
            os.link(temporary, path)
        finally:
            os.unlink(temporary)
    except OSError as error:
        raise UserError(
            "output",
            str(path),
            f"cannot be written ({error.strerror})",
            "choose a folder that you can write to",
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
