"""JSON files with a digest of their own content, so that a change by hand or by a fault of a disk shows."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


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
    try:
        envelope = json.loads(path.read_bytes())
        content, digest = envelope["content"], envelope["sha256"]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError("no sealed file") from error
    if not isinstance(content, dict) or digest != _digest(content):
        raise ValueError("the content does not have the digest")
    return content


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
