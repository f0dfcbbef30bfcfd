"""A campaign's folder: findings survive every end of the campaign.

    campaign.json       digests of the code that the findings are about
    findings.jsonl      one fault a line
    clean.jsonl         one run without a fault a line

One process writes. The next process cuts off an unfinished line.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from parity.base.errors import UserError
from parity.base.files import parse_json, replacing
from parity.base.locks import LOCK
from parity.execution.folder import has_content

ABOUT = "campaign.json"
"""Name of the first file of a campaign's folder."""
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
            try:
                self.lines = [kind.model_validate_json(line) for line in content[:whole].splitlines()]
            except ValueError as error:
                problem = "has a line that no campaign wrote"
                raise UserError(
                    "--save", str(path), problem, "remove the line, or choose a new folder"
                ) from error
        self._file = path.open("a")

    def add(self, line: Line) -> None:
        """Append one line. It is on disk when this returns."""
        self.lines.append(line)
        self._file.write(line.model_dump_json() + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@contextlib.contextmanager
def without_empty(folder: Path) -> Iterator[None]:
    """Remove the files of a campaign whose plan the body refuses, unless they hold findings."""
    try:
        yield
    except UserError:
        files = [path for path in folder.iterdir() if path.name != LOCK]
        if not any(path.stat().st_size for path in files if path.name != ABOUT):
            for path in files:
                path.unlink()
        raise


def opened(folder: Path, code: Mapping[str, str]) -> Path:
    """Make a campaign's folder if it is missing, and check that its findings are about the same code.

    Args:
        folder: The folder.
        code: Digests of the code, see `parity.base.code`.

    Raises:
        UserError: The folder holds other files or findings about other code, or cannot be written.
    """
    about, description = folder / ABOUT, {"code": dict(code)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not about.exists():
            if has_content(folder):
                raise UserError("--save", str(folder), "holds something else", "choose a new folder")
            with replacing(about) as temporary:
                temporary.write_text(json.dumps(description))
        elif parse_json(about.read_bytes()) != description:
            problem = "holds findings about other code, which do not add up with new ones"
            raise UserError("--save", str(folder), problem, "choose a new folder")
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError("--save", str(folder), f"cannot be used ({error})", "choose a new folder") from error
    return folder
