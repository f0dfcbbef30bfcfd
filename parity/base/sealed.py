"""JSON files with a digest of their own content, so that a change by hand or by a fault of a disk shows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from parity.base.files import parse_json


def sealed(content: dict[str, Any]) -> bytes:
    """A JSON file with the content and its SHA-256."""
    envelope = {"sha256": _digest(content), "content": content}
    return (json.dumps(envelope, indent=1) + "\n").encode()


def read_sealed(path: Path) -> dict[str, Any]:
    """The content of such a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not as it was written.
    """
    text = path.read_bytes()
    try:
        content: dict[str, Any] = parse_json(text)["content"]
        same = isinstance(content, dict) and sealed(content) == text
    except (KeyError, TypeError) as error:
        raise ValueError("no sealed file") from error
    if not same:
        # Another order, space or second entry of a name counts too, although the content may be equal.
        raise ValueError("the file is not as it was written")
    return content


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
