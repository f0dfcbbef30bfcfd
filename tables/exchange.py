"""The tables of one rank of several: lookups and pooled sums by all-to-all.

Every rank makes the same calls in the same order, with ids of its own or none. After bad ids of one rank the
others wait, and the launcher ends them.

Legend: L ids, B bags, E columns, W ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from tables.interface import Table, Tables
from tables.local import pooled_rows, require_room
from tables.shards import open_shard
from tables.store import Manifest


class RankTables(Tables):
    """All tables, of which this rank holds its shards.

    The default process group has a rank for each rank of the store.

    Args:
        manifest: The store's manifest.
        rank: This process's rank.
        shards: The rows of this rank by table, on `device`; see `load`.
        device: Device of the rows and results.

    Attributes:
        rank: The same.
        ranks: Number of ranks.
    """

    def __init__(
        self, manifest: Manifest, rank: int, shards: Mapping[str, torch.Tensor], device: torch.device
    ) -> None:
        super().__init__((stored.table for stored in manifest.tables.values()), device)
        self.rank, self.ranks = rank, manifest.ranks
        self._shards = shards
        rows = {name: [0] * manifest.ranks for name in manifest.tables}
        for name, stored in manifest.tables.items():
            for shard in stored.shards:
                rows[name][shard.rank] = shard.rows
        self._holds = {name: [count > 0 for count in counts] for name, counts in rows.items()}
        self._ends = {name: torch.tensor(counts, device=device).cumsum(0) for name, counts in rows.items()}

    def _lookup(self, table: Table, ids_L: torch.Tensor) -> torch.Tensor:
        ids_L = ids_L.to(self.device)
        owners_L, order_L = self._owners(table, ids_L)
        sent = torch.bincount(owners_L, minlength=self.ranks).tolist()
        asked = self._exchanged_counts(sent)
        wanted = self._sent(ids_L[order_L], sent, asked)
        rows = self._own_rows(table, wanted)
        arrived = self._sent(rows, asked, sent)
        result = torch.empty_like(arrived)
        result[order_L] = arrived
        return result

    def _pooled(
        self, table: Table, ids_L: torch.Tensor, offsets_B: torch.Tensor, weights_L: torch.Tensor | None
    ) -> torch.Tensor:
        ids_L, offsets_B = ids_L.to(self.device), offsets_B.to(self.device)
        owners_L, order_L = self._owners(table, ids_L)
        bags = len(offsets_B)
        holds = self._holds[table.name]
        # The bag of each id, and the number of a bag's ids on each rank.
        bags_L = torch.searchsorted(offsets_B, torch.arange(len(ids_L), device=self.device), right=True) - 1
        lengths_WB = torch.bincount(owners_L * bags + bags_L, minlength=self.ranks * bags).view(
            self.ranks, bags
        )
        sent = torch.bincount(owners_L, minlength=self.ranks).tolist()
        asked = self._exchanged_counts(sent)
        sent_bags = [bags if held else 0 for held in holds]
        asked_bags = self._exchanged_counts(sent_bags)
        wanted = self._sent(ids_L[order_L], sent, asked)
        lengths = self._sent(lengths_WB[holds].reshape(-1), sent_bags, asked_bags)
        factors = None
        if weights_L is not None:
            factors = self._sent(weights_L.to(self.device)[order_L], sent, asked)
        sums = self._own_sums(table, wanted, lengths, factors)
        parts = self._sent(sums, asked_bags, sent_bags).view(sum(holds), bags, table.columns)
        # In the order of ranks, so that every run has the same sum.
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total.to(table.dtype)

    def _owners(self, table: Table, ids_L: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The rank of each id, and the order of ids by rank, in which ids of a rank keep theirs."""
        owners_L = torch.searchsorted(self._ends[table.name], ids_L, right=True)
        return owners_L, owners_L.argsort(stable=True)

    def _own_rows(self, table: Table, ids_L: torch.Tensor) -> torch.Tensor:
        if table.name not in self._shards:
            return torch.empty(0, table.columns, dtype=table.dtype, device=self.device)
        return self._shards[table.name].index_select(0, ids_L - self._first_row(table))

    def _own_sums(
        self, table: Table, ids_L: torch.Tensor, lengths_B: torch.Tensor, weights_L: torch.Tensor | None
    ) -> torch.Tensor:
        if table.name not in self._shards:
            return torch.empty(0, table.columns, device=self.device)
        offsets_B = lengths_B.cumsum(0) - lengths_B
        return pooled_rows(self._shards[table.name], ids_L - self._first_row(table), offsets_B, weights_L)

    def _first_row(self, table: Table) -> torch.Tensor | int:
        return self._ends[table.name][self.rank - 1] if self.rank else 0

    def _exchanged_counts(self, counts: Sequence[int]) -> list[int]:
        """For each rank the count that it has for this one."""
        own = torch.tensor(counts, device=self.device)
        others = torch.empty_like(own)
        dist.all_to_all_single(others, own)
        return others.tolist()

    def _sent(self, rows: torch.Tensor, counts: Sequence[int], arriving: Sequence[int]) -> torch.Tensor:
        """The rows that the ranks have for this one, in the order of ranks.

        Args:
            rows: (L,) or (L, E), the rows for each rank in the order of ranks.
            counts: Number of rows for each rank.
            arriving: Number of rows from each rank.
        """
        # Bytes, since not every backend has every type.
        size = rows[0:1].nbytes if len(rows) else rows.new_empty((1, *rows.shape[1:])).nbytes
        result = rows.new_empty((sum(arriving), *rows.shape[1:]))
        dist.all_to_all_single(
            result.reshape(-1).view(torch.uint8),
            rows.contiguous().reshape(-1).view(torch.uint8),
            [count * size for count in arriving],
            [count * size for count in counts],
        )
        return result


def load(
    manifest: Manifest, rank: int, device: torch.device, thorough: bool = True
) -> dict[str, torch.Tensor]:
    """The shards of a rank by table: mapped from their files on the CPU, copied to a GPU.

    Raises:
        UserError: A shard is not as the manifest says, or the device lacks memory.
    """
    own = list(manifest.on(rank))
    if device.type != "cpu":
        require_room(
            device, manifest.folder, sum(shard.rows * stored.table.row_bytes for stored, shard in own)
        )
    return {
        stored.table.name: open_shard(manifest, stored, shard, thorough).to(device) for stored, shard in own
    }
