"""Preprocessed Criteo data on disk: one uncompressed ``.npz``, written as a stream, whole or not at all.

``numpy.savez`` needs every array in memory. Here arrays arrive in blocks, wait in a folder of plain files
beside the cache, and are copied into the archive at the end. Being uncompressed, they are mapped and not
read.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from datasets.errors import DataError

_COPY_BYTES = 1 << 20


class Spill:
    """Columns that grow block by block, each in a file of its own under ``folder``."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder = folder
        self._streams = {name: self.path(name).open("wb") for name in names}

    def path(self, name: str) -> Path:
        """Where a column's bytes are."""
        return self._folder / name

    def append(self, name: str, block: np.ndarray) -> None:
        """Add a block to a column."""
        np.ascontiguousarray(block).tofile(self._streams[name])

    def close(self) -> None:
        """Finish writing; columns can be read from then on."""
        for stream in self._streams.values():
            stream.close()


def read_blocks(path: Path, dtype: type[np.generic], count: int) -> Iterator[np.ndarray]:
    """Yield a column's values, ``count`` at a time."""
    with path.open("rb") as stream:
        while (block := np.fromfile(stream, dtype=dtype, count=count)).size:
            yield block


@contextmanager
def spill_folder(beside: Path) -> Iterator[Path]:
    """A folder on the disk of ``beside``, removed with all it holds when the work is done or has failed.

    Raises:
        DataError: something cannot be written there.
    """
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=beside.parent, prefix=f".{beside.name}.") as folder:
            yield Path(folder)
    except OSError as error:
        fix = "choose a place that you can write to, with room for about twice the data"
        problem = f"cannot be written ({error.strerror or error})"
        raise DataError("cache", str(beside), problem, fix) from error


class NpzWriter:
    """Writes the members of an ``.npz`` one after the other; ``open_npz`` and ``numpy.load`` read it."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive

    def add(self, name: str, array: np.ndarray) -> None:
        """Write a small array."""
        with self._archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array(member, array, allow_pickle=False)

    def add_files(
        self, name: str, dtype: type[np.generic], shape: tuple[int, ...], paths: Sequence[Path]
    ) -> None:
        """Write an array whose bytes are those of ``paths``, one file after the other, without holding it."""
        header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
        with self._archive.open(f"{name}.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(member, header)
            for path in paths:
                with path.open("rb") as stream:
                    shutil.copyfileobj(stream, member, _COPY_BYTES)


@contextmanager
def write_npz(path: Path, folder: Path) -> Iterator[NpzWriter]:
    """Write ``path`` by way of ``folder``, on the same disk: readers see the old file or the new one."""
    temporary = folder / "archive"
    with temporary.open("wb") as stream:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            yield NpzWriter(archive)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def open_npz(path: Path) -> dict[str, np.ndarray]:
    """Map every member of an uncompressed ``.npz``, read-only: nothing is read until it is used.

    Raises:
        DataError: the file cannot be read or is no such archive.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED:
                    raise zipfile.BadZipFile(f"{member.filename} is compressed")
                # The local header repeats the name and has an extra field of its own length.
                stream.seek(member.header_offset + 26)
                name_length, extra_length = struct.unpack("<HH", stream.read(4))
                stream.seek(member.header_offset + 30 + name_length + extra_length)
                np.lib.format.read_magic(stream)
                shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
                empty = 0 in shape
                arrays[member.filename.removesuffix(".npy")] = (
                    np.empty(shape, dtype)
                    if empty
                    else np.memmap(path, dtype=dtype, mode="r", offset=stream.tell(), shape=shape)
                )
    except (OSError, zipfile.BadZipFile, struct.error, ValueError) as error:
        fix = "remove it: it is made again from the data"
        raise DataError("cache", str(path), f"cannot be read ({error})", fix) from error
    return arrays
