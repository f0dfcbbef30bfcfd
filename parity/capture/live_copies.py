"""Copies of tensors on a GPU that still live: a tensor that has not changed needs no second digest.

A mask that every layer receives is one tensor. A comparison with a copy on the GPU reads it at the speed of
the GPU's memory, without another copy to the host and its digest.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch

_LEAST_BYTES = 2**20
"""Bytes from which a tensor's copy is held."""
_WITHOUT = "cpu"
"""Device whose tensors have no copies: the host's memory is scarcer."""
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class _Copy:
    tensor: weakref.ref[torch.Tensor]
    content: torch.Tensor
    keys: set[str]


class LiveCopies:
    """Copies of the tensors of a running model by identity; each ends with its tensor."""

    def __init__(self) -> None:
        self._copies: dict[int, _Copy] = {}

    def keys(self, tensor: torch.Tensor) -> set[str]:
        """The keys of a tensor's copies, if its bits have not changed since; else nothing."""
        copy = self._copies.get(id(tensor))
        if copy is None or copy.tensor() is not tensor:
            return set()
        return copy.keys if _same_bits(copy.content, tensor) else set()

    def add(self, tensor: torch.Tensor, key: str, content: torch.Tensor | None = None) -> None:
        """Hold a copy of a tensor, or another key of the copy that is held already.

        Args:
            tensor: The tensor.
            key: Name of a copy of this content elsewhere.
            content: Its content as it is now, on the same device, which nothing overwrites. It is copied by
                default.
        """
        if tensor.device.type == _WITHOUT or tensor.numel() * tensor.itemsize < _LEAST_BYTES:
            return
        known = self.keys(tensor)
        if known:
            known.add(key)
            return
        if content is None:
            content = tensor.detach().clone()
        number = id(tensor)
        ended = weakref.ref(tensor, lambda ended: self._drop(number, ended))
        self._copies[number] = _Copy(ended, content, {key})

    def _drop(self, number: int, ended: weakref.ref[torch.Tensor]) -> None:
        # Another tensor may have the number by now.
        if number in self._copies and self._copies[number].tensor is ended:
            del self._copies[number]


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.itemsize not in _WORDS or one.is_complex():
        return torch.equal(one, other)
    words = _WORDS[one.itemsize]
    return torch.equal(one.view(words), other.detach().view(words))
