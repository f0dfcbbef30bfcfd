"""Tables whose shards are in several processes, for a program in one process.

Each rank takes a part of the ids, exchanges rows with the others, and sends its part of the result.

Legend: L ids, B bags, E columns.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from tables.interface import Table, Tables
from tables.rank_process import answer
from tables.ranks import Ranks
from tables.store import as_bytes

Message = tuple[str, np.ndarray, np.ndarray | None, np.ndarray | None]
"""Name of a table, ids, and for a pooled sum offsets and weights."""


class ShardedTables(Tables):
    """Tables in one process a rank; results are in this process's memory. Any thread may call, one at a time.

    A program on several GPUs avoids the copies to this process: `tables.ranks.run` calls it in each rank.

    Args:
        folder: The store; its number of ranks is that of processes.
        device: `cpu` (gloo) or `cuda` (NCCL, one GPU a rank).
        thorough: See `tables.shards.open_shard`.
        seconds: Longest time of a call.
        engine: `exchange` or `peer`, see `tables.rank_process.ENGINES`.

    Attributes:
        ranks: The processes. `ranks.check()` raises if one has died.

    Raises:
        UserError: The device is absent, or a shard is not as the manifest says.
        RankFailure: A rank died. Every call may raise it; all ranks have ended then.
    """

    def __init__(
        self,
        folder: Path,
        device: str = "cpu",
        thorough: bool = True,
        seconds: float = 600.0,
        engine: str = "exchange",
    ) -> None:
        self._one_call = threading.Lock()
        self.ranks = Ranks(folder, f"{__name__}:serve", (), device, thorough, seconds, engine)
        stored = self.ranks.manifest.tables.values()
        super().__init__((one.table for one in stored), torch.device("cpu"))

    def _lookup(self, table: Table, ids_L: torch.Tensor) -> torch.Tensor:
        messages = [(table.name, part.numpy(), None, None) for part in self._parts(ids_L.cpu())]
        return self._called(f"a lookup in table {table.name}", messages, table, len(ids_L))

    def _pooled(
        self, table: Table, ids_L: torch.Tensor, offsets_B: torch.Tensor, weights_L: torch.Tensor | None
    ) -> torch.Tensor:
        ids_L, offsets_B = ids_L.cpu(), offsets_B.cpu()
        weights_L = None if weights_L is None else weights_L.cpu()
        messages, ends = [], torch.cat([offsets_B, torch.tensor([len(ids_L)])]).tolist()
        for rank, part in enumerate(self._parts(offsets_B)):
            first = self._first(len(offsets_B), rank)
            ids = slice(ends[first], ends[first + len(part)])
            weights = None if weights_L is None else weights_L[ids].numpy()
            messages.append((table.name, ids_L[ids].numpy(), (part - ends[first]).numpy(), weights))
        return self._called(f"a pooled sum of table {table.name}", messages, table, len(offsets_B))

    def _called(self, work: str, messages: Sequence[Message], table: Table, count: int) -> torch.Tensor:
        """The results of all ranks, (count, E), in the order of ranks."""
        rows = torch.empty(count, table.columns, dtype=table.dtype)
        with self._one_call:
            for rank, message in enumerate(messages):
                self.ranks.send(rank, message)
            self.ranks.answers(work)
            for rank, part in enumerate(self._parts(rows)):
                self.ranks.read_into(rank, part, work)
        return rows

    def _parts(self, values: torch.Tensor) -> list[torch.Tensor]:
        """A part for each rank, of about the same length."""
        count = self.ranks.manifest.ranks
        firsts = [self._first(len(values), rank) for rank in range(count + 1)]
        return [values[first:last] for first, last in zip(firsts, firsts[1:], strict=False)]

    def _first(self, length: int, rank: int) -> int:
        return length * rank // self.ranks.manifest.ranks

    def close(self) -> None:
        super().close()
        self.ranks.close()


def serve(tables: Tables, pipe: Connection) -> None:
    """The program of a rank: answer calls until the pipe is closed."""
    while True:
        try:
            name, ids, offsets, weights = pipe.recv()
        except EOFError:
            return
        if offsets is None:
            rows = tables.lookup(name, torch.from_numpy(ids))
        else:
            factors = None if weights is None else torch.from_numpy(weights)
            rows = tables.pooled(name, torch.from_numpy(ids), torch.from_numpy(offsets), factors)
        answer(pipe, None)
        pipe.send_bytes(as_bytes(rows))
