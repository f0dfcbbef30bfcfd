"""Keys and values of requests' shared rows, bounded in bytes. The least recently used ones leave first.

All tensors are made and read in the stream of the port's work, so that the device's order is the server's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Entry:
    """Keys and values of one request's shared rows.

    Attributes:
        request: Number of the request that they were computed for.
        tensors: One (rows, columns) tensor for each of `parity.case.cached.Cached.keep`, in one memory.
    """

    request: int
    tensors: tuple[torch.Tensor, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True)
class Statistics:
    """The work of a cache in one test.

    Attributes:
        hits, misses: Queries whose shared rows were there, and others.
        evictions: Entries that left for another one.
        largest: Most bytes of all entries.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    largest: int = 0


class KVCache:
    """Entries by the key of their requests.

    Args:
        limit: Most bytes of all entries.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._size = 0
        self.statistics = Statistics()

    def get(self, key: bytes) -> Entry | None:
        """The entry of a key, which is then the last one to leave; None if there is none."""
        entry, statistics = self._entries.get(key), self.statistics
        if entry is None:
            self.statistics = replace(statistics, misses=statistics.misses + 1)
        else:
            self._entries.move_to_end(key)
            self.statistics = replace(statistics, hits=statistics.hits + 1)
        return entry

    def put(self, key: bytes, entry: Entry) -> None:
        """Keep an entry. Others leave until all fit; one that is too large is not kept."""
        if entry.size > self._limit:
            return
        old = self._entries.pop(key, None)
        self._size += entry.size - (0 if old is None else old.size)
        self._entries[key] = entry
        evictions = self.statistics.evictions
        while self._size > self._limit:
            _, oldest = self._entries.popitem(last=False)
            self._size -= oldest.size
            evictions += 1
        largest = max(self.statistics.largest, self._size)
        self.statistics = replace(self.statistics, evictions=evictions, largest=largest)


def taken(tensors: Sequence[torch.Tensor], first: int, rows: int) -> tuple[torch.Tensor, ...]:
    """Copies of some rows of tensors (..., columns) of one type, in one memory."""
    sources = [tensor.flatten(0, -2)[first : first + rows] for tensor in tensors]
    memory = sources[0].new_empty(sum(source.numel() for source in sources))
    copies = _parts(memory, [tuple(source.shape) for source in sources])
    torch._foreach_copy_(copies, sources)
    return tuple(copies)


def batched(entries: Sequence[Entry], rows: int, width: int) -> list[torch.Tensor]:
    """One (rows, width, columns) tensor for each of an entry: its rows at the beginning, zeros elsewhere.

    Args:
        entries: At least one; behind the last one, the first one comes again.
        rows: Requests of the batch.
        width: Tokens of a padded request.
    """
    first = entries[0].tensors
    shapes = [(rows, width, tensor.shape[-1]) for tensor in first]
    memory = first[0].new_zeros(sum(rows * width * columns for _, _, columns in shapes))
    batch = _parts(memory, shapes)
    sources = [entries[row % len(entries)].tensors for row in range(rows)]
    targets = [
        tensor[row, : len(source)]
        for row, own in enumerate(sources)
        for tensor, source in zip(batch, own, strict=True)
    ]
    torch._foreach_copy_(targets, [source for own in sources for source in own])
    return batch


def _parts(memory: torch.Tensor, shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    """Tensors of these shapes, one behind the other in one memory."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    return [part.view(shape) for part, shape in zip(memory.split(sizes), shapes, strict=True)]
