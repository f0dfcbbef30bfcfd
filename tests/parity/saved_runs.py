"""Saved runs that a test changes on purpose, and seals again as if the run had written them."""

import json

from parity.base.code import file_digest
from parity.base.sealed import read_sealed, sealed


def seal(folder, **facts):
    """Give the manifest of a run the digests of its files as they are, and other facts if there are any."""
    path = folder / "manifest.json"
    content = read_sealed(path) | facts
    content["files"] = {
        file.relative_to(folder).as_posix(): file_digest(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file != path
    }
    path.write_bytes(sealed(content))


def manifest(folder):
    """The content of a run's manifest."""
    return read_sealed(folder / "manifest.json")


def rewrite(path, change):
    """Change the content of a sealed file in place, and seal it again."""
    content = json.loads(path.read_bytes())["content"]
    change(content)
    path.write_bytes(sealed(content))
