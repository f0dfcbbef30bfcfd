"""The tables of one rank of several, which reads rows straight from the memory of the other ranks.

Ranks share their shards once, at the start. A lookup then is one kernel on this rank's GPU: it needs no other
rank, no order of the ids and no exchange. Ranks make calls of their own, whenever they like.

Legend: L ids, B bags, E columns, W shards.
"""

from __future__ import annotations

import inspect
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor
from torch.utils._triton import has_triton

from parity.base.errors import UserError
from tables.interface import Table
from tables.local import LocalTables
from tables.store import Manifest

_VECTOR_BYTES = 16
"""The widest access of a thread."""
_TILE_BYTES = 1 << 13
"""Bytes that a program of the kernel moves: four accesses of each of its threads are under way at a time."""
_MOST_COLUMNS = 1 << 11
"""Most columns of a program."""
_DEVICE = list(inspect.signature(rebuild_cuda_tensor).parameters).index("storage_device")
"""Place of the GPU's number among the arguments that open a tensor's memory."""
_WORDS = {2: torch.int16, 4: torch.int32}
"""Integers of the size of an element: rows are moved, and never computed with."""


class PeerTables(LocalTables):
    """All tables, of which this rank holds its shards, and reads the others where they are.

    The default process group has a rank for each rank of the store, all on one machine.

    Args:
        manifest: The store's manifest.
        rank: This process's rank.
        shards: The rows of this rank by table, on `device`; see `tables.exchange.load`.
        device: Device of the rows and results: the CPU, or the GPU of this rank.

    Attributes:
        rank: The same.
        ranks: Number of ranks.

    Raises:
        UserError: A GPU cannot read another one's memory, or Triton is missing.
    """

    def __init__(
        self, manifest: Manifest, rank: int, shards: Mapping[str, torch.Tensor], device: torch.device
    ) -> None:
        self.rank, self.ranks = rank, manifest.ranks
        if device.type == "cuda":
            _require_peers(rank, manifest.ranks, device)
        whole = shared_shards(manifest, rank, shards)
        self._addresses: dict[str, _Addresses] = {}
        if device.type == "cuda":
            self._addresses = {name: _Addresses.of(parts, device) for name, parts in whole.items()}
        super().__init__(manifest, whole, device)

    def _lookup(self, table: Table, ids_L: torch.Tensor) -> torch.Tensor:
        if not self._addresses:
            return super()._lookup(table, ids_L)
        return self._addresses[table.name].read(table, ids_L.to(self.device))


def shared_shards(
    manifest: Manifest, rank: int, shards: Mapping[str, torch.Tensor]
) -> dict[str, list[torch.Tensor]]:
    """The shards of all ranks by table, in the order of rows: this rank's own, and the others' memory.

    Every rank calls this.
    """
    # PyTorch takes a mapped file for memory that is shared already.
    shards = {name: rows if rows.is_cuda else rows.clone() for name, rows in shards.items()}
    # A shared tensor is for one receiver.
    own = [
        {} if other == rank else {name: _shared(rows) for name, rows in shards.items()}
        for other in range(manifest.ranks)
    ]
    sent: list[Any] = [None] * manifest.ranks
    dist.all_gather_object(sent, own)
    opened = {
        (name, other): _opened(content)
        for other, by_receiver in enumerate(sent)
        for name, content in by_receiver[rank].items()
    }
    opened |= {(name, rank): rows for name, rows in shards.items()}
    # A rank that ends takes its memory with it: all have opened the others' when one goes on.
    dist.barrier()
    return {
        name: [opened[name, shard.rank] for shard in stored.shards]
        for name, stored in manifest.tables.items()
    }


def _shared(rows: torch.Tensor) -> bytes:
    """What another process opens a tensor's memory with, once."""
    return bytes(ForkingPickler.dumps(reduce_tensor(rows)))


def _opened(content: bytes) -> torch.Tensor:
    """A tensor of another process, in its memory. That of another GPU is opened for this process's GPU."""
    open_memory, arguments = pickle.loads(content)
    if open_memory is rebuild_cuda_tensor:
        # The number of a GPU that may use the memory. With the owner's own, no other GPU could.
        arguments = (*arguments[:_DEVICE], torch.cuda.current_device(), *arguments[_DEVICE + 1 :])
    rows: torch.Tensor = open_memory(*arguments)
    return rows


def _require_peers(rank: int, ranks: int, device: torch.device) -> None:
    """Raises `UserError` where a GPU cannot read the memory of the others, or Triton is missing."""
    fix = "use the engine exchange, or a machine whose GPUs are linked"
    if not has_triton():
        raise UserError(f"rank {rank}", "peer", "needs Triton, which reads the memory of several GPUs", fix)
    for other in (torch.device("cuda", number) for number in range(ranks) if number != device.index):
        if not torch.cuda.can_device_access_peer(device, other):
            raise UserError(f"rank {rank}", str(other), f"is memory that {device} cannot read", fix)


@dataclass(frozen=True)
class _Addresses:
    """The shards of a table as a kernel reads them.

    Attributes:
        shards: Their rows as integers, in the order of rows.
        distances_W, ends_W, unit: See `read_rows_kernel`.
    """

    shards: Sequence[torch.Tensor]
    distances_W: torch.Tensor
    ends_W: torch.Tensor
    unit: int

    @classmethod
    def of(cls, shards: Sequence[torch.Tensor], device: torch.device) -> _Addresses:
        words = [shard.view(_WORDS[shard.itemsize]) for shard in shards]
        size, near = words[0].itemsize, words[0].data_ptr()
        distances = [(shard.data_ptr() - near) // size for shard in words]
        unit = math.gcd(_VECTOR_BYTES // size, *distances)
        ends = torch.tensor([len(shard) for shard in words], device=device).cumsum(0)
        in_units = torch.tensor([distance // unit for distance in distances], device=device)
        return cls(words, in_units, ends, unit)

    def read(self, table: Table, ids_L: torch.Tensor) -> torch.Tensor:
        """(L, E) for checked ids on the device."""
        # Triton decides between compiling and interpreting when it is imported.
        import triton

        from tables.peer_kernel import read_rows_kernel

        columns = table.columns
        rows_LE = torch.empty(len(ids_L), columns, dtype=table.dtype, device=ids_L.device)
        block = min(triton.next_power_of_2(columns), _MOST_COLUMNS)
        rows = max(1, _TILE_BYTES // (block * table.dtype.itemsize))
        grid = (triton.cdiv(len(ids_L), rows), triton.cdiv(columns, block))
        if len(ids_L):
            read_rows_kernel[grid](
                ids_L,
                self.shards[0],
                self.distances_W,
                self.ends_W,
                rows_LE.view(self.shards[0].dtype),
                len(ids_L),
                columns,
                SHARDS=len(self.shards),
                UNIT=self.unit,
                ROWS=triton.next_power_of_2(rows),
                COLUMNS=block,
                IS_WHOLE=columns % block == 0,
            )
        return rows_LE
