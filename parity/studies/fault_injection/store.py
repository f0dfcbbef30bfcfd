"""A campaign's folder: what is done stays done, however the campaign ends.

    campaign.json       the digest of the code that the findings are about
    findings.jsonl      one fault a line
    clean.jsonl         one run without a fault a line

One process writes. A line that it did not finish is cut off by the next one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from parity.base.errors import UserError

CODE = ("configs", "kernels", "parity", "reference", "tripy_port")
"""Folders whose code findings depend on."""

Line = TypeVar("Line", bound=BaseModel)


class Store(Generic[Line]):
    """Lines of one kind in one file.

    Args:
        path: The file; its folder has been opened by `opened`.
        kind: What a line holds.
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
        """Keep one more, on disk when this returns."""
        self.lines.append(line)
        self._file.write(line.model_dump_json() + "\n")
        self._file.flush()

    def close(self) -> None:
        """No more lines."""
        self._file.close()


def opened(folder: Path) -> Path:
    """The folder, made if it is missing.

    Raises:
        UserError: It holds something else, findings about other code, or cannot be written.
    """
    about, description = folder / "campaign.json", {"code": digest()}
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


def digest() -> str:
    """SHA-256 of the code that a finding depends on."""
    root = Path(__file__).parents[3]
    hasher = hashlib.sha256()
    for path in sorted(path for part in CODE for path in (root / part).rglob("*")):
        if path.suffix in (".py", ".yaml"):
            hasher.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return hasher.hexdigest()
