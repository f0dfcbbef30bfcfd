"""Tensors on disk as they come, so that what a runner has seen never has to fit into memory.

A capture keeps its small tensors in its own file. A large one is a file beside it from the moment that it is
set, named by its content, so that several captures of a runner that hold the same tensor hold it once:

    <runner>/tapped.safetensors                 the small tensors of a capture
    <runner>/tensors/<digest>.safetensors       a large one, or some rows of one

Reading maps a file into memory when its tensor is asked for; nothing is held.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from parity.base.errors import UserError

LARGE_BYTES = 2**20
"""From this size on a tensor is a file of its own."""
HELD = 32
"""How many times that size all small tensors together may have; those that come later are files as well."""
FOLDER = "tensors"
_KEY = "tensor"


class CannotWrite(UserError):
    """A run's folder cannot be written, or its disk is full. Ends the run: it would meet every runner."""


def content_digest(tensor: torch.Tensor) -> str:
    """SHA-256 of a contiguous tensor's bytes, type and shape."""
    raw = tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor.reshape(-1)
    digest = hashlib.sha256(raw.cpu().numpy())
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    return digest.hexdigest()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what goes wrong while a capture is written into `CannotWrite`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CannotWrite(
            "captures",
            str(path),
            f"cannot be written ({error})",
            "free space on that disk, or choose a folder on another one with --save, or with TMPDIR",
        ) from error


class Spool(MutableMapping[str, torch.Tensor]):
    """Tensors by name in the order in which they were set; only the small ones are in memory.

    Args:
        folder: Where large ones go.
        large: Bytes from which a tensor is large.

    Attributes:
        small: The small ones.
        stored: Digests of the files that the others are in: several for a tensor that came in rows.
        shapes: Shapes of all of them.
        sizes: Bytes of all of them.

    Raises:
        CannotWrite: as it says.
    """

    def __init__(self, folder: Path, large: int = LARGE_BYTES) -> None:
        self._folder = folder
        self._large = large
        self._held = 0
        self.small: dict[str, torch.Tensor] = {}
        self.stored: dict[str, list[str]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.sizes: dict[str, int] = {}

    def beside(self) -> Spool:
        """An empty one that shares this one's files."""
        return Spool(self._folder, self._large)

    def __setitem__(self, name: str, tensor: torch.Tensor) -> None:
        self.pop(name, None)
        self.shapes[name], self.sizes[name] = tuple(tensor.shape), tensor.nbytes
        if tensor.nbytes < self._large and self._held + tensor.nbytes <= HELD * self._large:
            self._held += tensor.nbytes
            self.small[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        else:
            self.stored[name] = [self._store(tensor)]

    def add_rows(self, name: str, tensor: torch.Tensor) -> None:
        """Append to a tensor along its first axis."""
        rows, *others = self.shapes.get(name, (0, *tensor.shape[1:]))
        self.shapes[name] = (rows + tensor.shape[0], *others)
        self.sizes[name] = self.sizes.get(name, 0) + tensor.nbytes
        files = self.stored.setdefault(name, [])
        files.extend(self._store(some) for some in tensor.split(self._rows_of_a_file(tensor)))

    def _rows_of_a_file(self, tensor: torch.Tensor) -> int:
        """As few as make a large file, a power of two: a batch cut into more parts makes the same files."""
        row_bytes = max(1, tensor.nbytes // max(1, tensor.shape[0]))
        return 1 << max(0, math.ceil(math.log2(self._large / row_bytes)))

    def _store(self, tensor: torch.Tensor) -> str:
        own = tensor.detach().cpu()
        if own.stride() != torch.empty(own.shape, device="meta").stride():
            own = own.clone(memory_format=torch.contiguous_format)
        digest = content_digest(own)
        path = _file(self._folder, digest)
        with writing(path):
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = path.with_name(f".{path.name}.{os.getpid()}")
                try:
                    save_file({_KEY: own}, temporary)
                    temporary.replace(path)
                finally:
                    temporary.unlink(missing_ok=True)
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
            self._held -= size

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def _file(folder: Path, digest: str) -> Path:
    return folder / f"{digest[:32]}.safetensors"


def load_rows(folder: Path, digests: list[str]) -> torch.Tensor:
    """A tensor of a `Spool`, from the folder of its files. Raises `OSError` or `SafetensorError`."""
    parts = []
    for digest in digests:
        with safe_open(_file(folder, digest), framework="pt") as file:
            parts.append(file.get_tensor(_KEY))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class Stored(Mapping[str, torch.Tensor]):
    """The tensors of a saved capture, each read when it is asked for.

    Args:
        stem: The capture's path without its suffix.
        prefix: Of the tensors' names in its file.
        order: Names.
        stored, shapes, sizes: As in `Spool`, of all tensors that the JSON file describes.

    Raises:
        UserError: a file is missing or damaged.
    """

    def __init__(
        self,
        stem: Path,
        prefix: str,
        order: list[str],
        stored: Mapping[str, list[str]],
        shapes: Mapping[str, list[int]],
        sizes: Mapping[str, int],
    ) -> None:
        self._stem = stem
        self._prefix = prefix
        self._order = dict.fromkeys(order)
        self._stored = stored
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.sizes = sizes

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._order:
            raise KeyError(name)
        with reading(self._stem):
            if name in self._stored:
                return load_rows(self._stem.parent / FOLDER, self._stored[name])
            with safe_open(self._stem.with_suffix(".safetensors"), framework="pt") as file:
                return file.get_tensor(self._prefix + name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, name: object) -> bool:
        return name in self._order


class Through(MutableMapping[str, torch.Tensor]):
    """Another mapping, whose tensors are changed on their way into it.

    Args:
        inner: Where they go.
        change: From a name and a tensor to the names and tensors that take its place.
    """

    def __init__(
        self,
        inner: MutableMapping[str, torch.Tensor],
        change: Callable[[str, torch.Tensor], Mapping[str, torch.Tensor]],
    ) -> None:
        self._inner = inner
        self._change = change

    def __setitem__(self, name: str, tensor: torch.Tensor) -> None:
        self._inner.update(self._change(name, tensor))

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._inner[name]

    def __delitem__(self, name: str) -> None:
        del self._inner[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)


@contextlib.contextmanager
def reading(stem: Path) -> Iterator[None]:
    """Turns what goes wrong while a saved capture is read into a `UserError`."""
    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError("capture", str(stem), f"is missing or damaged ({error})", "run again") from error
