"""A campaign's folder: findings survive every end of the campaign.

    campaign.json       the digest of the code that the findings are about
    findings.jsonl      one fault a line
    clean.jsonl         one run without a fault a line

One process writes. The next process cuts off an unfinished line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from parity.base.errors import UserError
from parity.studies.packages import path_of

Line = TypeVar("Line", bound=BaseModel)


class Store(Generic[Line]):
    """Lines of one kind in one file.

    Args:
        path: The file, in a folder of `opened`.
        kind: Type of a line's data.
    """

    def __init__(self, path: Path, kind: type[Line]) -> None:
        self.lines: list[Line] = []
        if path.exists():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            with path.open("r+b") as file:
                file.truncate(whole)
            self.lines = [kind.model_validate_json(line) for line in content[:whole].splitlines()]
        self._file = path.open("a")

    def add(self, line: Line) -> None:
        """Append one line. It is on disk when this returns."""
        self.lines.append(line)
        self._file.write(line.model_dump_json() + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def opened(folder: Path, code: str) -> Path:
    """Make a campaign's folder if it is missing, and check that its findings are about the same code.

    Args:
        folder: The folder.
        code: `digest` of the code.

    Raises:
        UserError: The folder holds other files or findings about other code, or cannot be written.
    """
    about, description = folder / "campaign.json", {"code": code}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not about.exists():
            if any(folder.iterdir()):
                raise UserError("--save", str(folder), "holds something else", "choose a new folder")
            about.write_text(json.dumps(description))
        elif json.loads(about.read_text()) != description:
            problem = "holds findings about other code, which do not add up with new ones"
            raise UserError("--save", str(folder), problem, "choose a new folder")
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError("--save", str(folder), f"cannot be used ({error})", "choose a new folder") from error
    return folder


def digest(packages: Iterable[str]) -> str:
    """SHA-256 of the Python and YAML files of top packages."""
    hasher = hashlib.sha256()
    for package in sorted(set(packages)):
        root = path_of(package)
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.suffix in (".py", ".yaml"):
                hasher.update(f"{path.relative_to(root.parent)}\n".encode() + path.read_bytes())
    return hasher.hexdigest()
