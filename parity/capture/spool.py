"""Tensors that go to the disk as they come, so that a capture never has to fit into memory.

Small tensors stay in memory until the capture is saved. A large one is a file from the moment it is set. The
file is named by its content: captures that hold the same tensor share it.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from parity.base.errors import UserError
from parity.base.files import replacing

LARGE_BYTES = 2**20
"""Size from which a tensor has a file of its own, in bytes."""
SMALL_TOTAL = 32
"""Largest total of all small tensors, in units of the size of a large one; later ones are files as well."""
_KEY = "tensor"
_PIECE = 2**24
"""Bytes of a large tensor that have a digest of their own."""
_DIGESTING = min(8, os.cpu_count() or 1)
"""Threads that digest a large tensor."""


class CannotWrite(UserError):
    """The run's folder cannot be written, or its disk is full. Ends the run, since every runner meets it."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of writing a capture into `CannotWrite`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CannotWrite(
            "captures",
            str(path),
            f"cannot be written ({error})",
            "free space on that disk, or choose a folder on another one with --save, or with TMPDIR",
        ) from error


def content_digest(tensor: torch.Tensor) -> str:
    """SHA-256 of a contiguous tensor's bytes, type and shape."""
    flat = tensor.reshape(-1)
    # NumPy has no type for an empty tensor of bfloat16.
    raw = flat.view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    content = raw.cpu().numpy()
    if content.nbytes > _PIECE:
        # Of a large tensor the digest of its pieces' digests, which threads take side by side.
        pieces = [content[start : start + _PIECE] for start in range(0, content.nbytes, _PIECE)]
        with ThreadPoolExecutor(max_workers=_DIGESTING) as threads:
            digest = hashlib.sha256(b"".join(threads.map(_digest, pieces)))
    else:
        digest = hashlib.sha256(content)
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    return digest.hexdigest()


def _digest(content: np.ndarray) -> bytes:
    return hashlib.sha256(content).digest()


class Spool(MutableMapping[str, torch.Tensor]):
    """Tensors by name in the order in which they were set; only the small ones are in memory.

    Args:
        folder: Folder of the files.
        large: Size from which a tensor is large, in bytes.

    Attributes:
        small: The tensors in memory.
        stored: Digests of the files of the others, by name: several for a tensor that came in rows.
        shapes: Shapes of all tensors, by name.
        sizes: Sizes of all tensors in bytes, by name.

    Raises:
        CannotWrite: The folder cannot be written.
    """

    def __init__(self, folder: Path, large: int = LARGE_BYTES) -> None:
        self._folder = folder
        self._large = large
        self._small_bytes = 0
        self.small: dict[str, torch.Tensor] = {}
        self.stored: dict[str, list[str]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.sizes: dict[str, int] = {}

    def beside(self) -> Spool:
        """An empty spool that shares this one's files."""
        return Spool(self._folder, self._large)

    def __setitem__(self, name: str, tensor: torch.Tensor) -> None:
        self.add(name, tensor)

    def add(self, name: str, tensor: torch.Tensor, digest: str = "") -> None:
        """Set a tensor whose `content_digest` may be known."""
        self.pop(name, None)
        self.shapes[name], self.sizes[name] = tuple(tensor.shape), tensor.nbytes
        if tensor.nbytes < self._large and self._small_bytes + tensor.nbytes <= SMALL_TOTAL * self._large:
            self._small_bytes += tensor.nbytes
            self.small[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        else:
            self.stored[name] = [self._store(tensor, digest)]

    def add_rows(self, name: str, tensor: torch.Tensor) -> None:
        """Append to a tensor along its first axis."""
        rows, *others = self.shapes.get(name, (0, *tensor.shape[1:]))
        self.shapes[name] = (rows + tensor.shape[0], *others)
        self.sizes[name] = self.sizes.get(name, 0) + tensor.nbytes
        files = self.stored.setdefault(name, [])
        files.extend(self._store(rows) for rows in tensor.split(self._rows_of_a_file(tensor)))

    def _rows_of_a_file(self, tensor: torch.Tensor) -> int:
        """The fewest rows of a large file, a power of two: more parts of a batch make the same files."""
        row_bytes = max(1, tensor.nbytes // max(1, tensor.shape[0]))
        return 1 << max(0, math.ceil(math.log2(self._large / row_bytes)))

    def _store(self, tensor: torch.Tensor, digest: str = "") -> str:
        own = tensor.detach().cpu()
        if own.stride() != torch.empty(own.shape, device="meta").stride():
            own = own.clone(memory_format=torch.contiguous_format)
        digest = digest or content_digest(own)
        path = _file(self._folder, digest)
        with writing(path):
            if not path.exists():
                with replacing(path) as temporary:
                    save_file({_KEY: own}, temporary)
        return digest

    def __getitem__(self, name: str) -> torch.Tensor:
        if name in self.small:
            return self.small[name]
        return load_rows(self._folder, self.stored[name])

    def __delitem__(self, name: str) -> None:
        del self.shapes[name]
        size = self.sizes.pop(name)
        if self.stored.pop(name, None) is None:
            del self.small[name]
            self._small_bytes -= size

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def _file(folder: Path, digest: str) -> Path:
    return folder / f"{digest[:32]}.safetensors"


def is_floating_point(folder: Path, digests: list[str]) -> bool:
    """Whether a tensor of a `Spool` has floating-point numbers. Raises `OSError` or `SafetensorError`."""
    with safe_open(_file(folder, digests[0]), framework="pt") as file:
        return str(file.get_slice(_KEY).get_dtype()).startswith(("F", "BF"))


def load_rows(folder: Path, digests: list[str]) -> torch.Tensor:
    """A tensor of a `Spool`, from the folder of its files. Raises `OSError` or `SafetensorError`."""
    rows = []
    for digest in digests:
        with safe_open(_file(folder, digest), framework="pt") as file:
            rows.append(file.get_tensor(_KEY))
    return rows[0] if len(rows) == 1 else torch.cat(rows)
