"""Preprocessed Criteo data on disk: a folder of ``.npy`` files, mapped and not read, and their description.

A cache takes its name when it is complete: readers see the old cache, none, or the new one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from datasets.errors import DataError

SCHEMA = "datasets.criteo/1"
_ABOUT = "about.json"


def read_blocks(path: Path, dtype: type[np.generic], count: int) -> Iterator[np.ndarray]:
    """Yields the values of a file without a header, at most ``count`` at a time."""
    with path.open("rb") as stream:
        while (block := np.fromfile(stream, dtype=dtype, count=count)).size:
            yield block


def write_array(
    path: Path, dtype: type[np.generic], shape: tuple[int, ...], blocks: Iterable[np.ndarray]
) -> None:
    """Writes an ``.npy`` file block by block; a map of the file would count as memory of the process.

    Args:
        path: the file.
        dtype: the type of the array.
        shape: the shape of the array.
        blocks: all values, in C order; any shape and type.
    """
    with path.open("wb") as stream:
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        for block in blocks:
            block.astype(dtype, copy=False).tofile(stream)
        stream.flush()
        os.fsync(stream.fileno())


def describe(folder: Path, about: dict[str, Any]) -> None:
    """Writes the description of the arrays in a folder."""
    (folder / _ABOUT).write_text(json.dumps({"schema": SCHEMA, **about}))


@contextmanager
def new_cache(path: Path) -> Iterator[Path]:
    """A folder for the files of a cache. It becomes the cache ``path`` when the block has ended.

    Raises:
        DataError: ``path`` is something else than a cache, or a file cannot be written.
    """
    if path.exists() and not _is_cache(path):
        raise DataError("cache", str(path), "is no cache", "remove it, or give a new path")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as temporary:
            folder, old = Path(temporary) / "new", Path(temporary) / "old"
            folder.mkdir()
            yield folder
            if path.exists():
                path.rename(old)
            folder.rename(path)
    except OSError as error:
        fix = "choose a place that you can write to, with room for about twice the data"
        problem = f"cannot be written ({error.strerror or error})"
        raise DataError("cache", str(path), problem, fix) from error


def open_cache(path: Path) -> tuple[dict[str, Any], Callable[[str], np.ndarray]]:
    """The description of a cache, and a function that maps an array by its name, read-only.

    Raises:
        DataError: ``path`` is no cache; or the function cannot read an array.
    """
    if not _is_cache(path):
        raise DataError("cache", str(path), "is no cache", "remove it, or give a new path")

    def array(name: str) -> np.ndarray:
        try:
            return np.load(path / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, EOFError, ValueError) as error:
            fix = "remove it; the data make it again"
            raise DataError("cache", str(path), f"cannot be read ({error})", fix) from error

    return json.loads((path / _ABOUT).read_text()), array


def _is_cache(path: Path) -> bool:
    try:
        return json.loads((path / _ABOUT).read_text())["schema"] == SCHEMA
    except (OSError, ValueError, KeyError, TypeError):
        return False
