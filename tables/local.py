"""Tables in this process: memory-mapped host memory, and one device.

Legend: L ids, B bags, E columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from parity.base.errors import UserError
from parity.base.memory import require
from tables.interface import Table, Tables
from tables.shards import open_shard
from tables.store import Manifest, read_manifest


class LocalTables(Tables):
    """Tables whose shards are all here.

    Args:
        manifest: The store's manifest.
        shards: For each table its shards in the order of rows.
        device: Their device.
    """

    def __init__(
        self, manifest: Manifest, shards: Mapping[str, Sequence[torch.Tensor]], device: torch.device
    ) -> None:
        super().__init__((stored.table for stored in manifest.tables.values()), device)
        self._shards = shards

    def _lookup(self, table: Table, ids_L: torch.Tensor) -> torch.Tensor:
        ids_L, shards = self._placed(ids_L), self._shards[table.name]
        if len(shards) == 1:
            return shards[0].index_select(0, ids_L)
        rows = torch.empty(len(ids_L), table.columns, dtype=table.dtype, device=self.device)
        first = 0
        for shard in shards:
            positions = ((ids_L >= first) & (ids_L < first + len(shard))).nonzero().squeeze(1)
            rows[positions] = shard.index_select(0, ids_L[positions] - first)
            first += len(shard)
        return rows

    def _placed(self, ids_L: torch.Tensor) -> torch.Tensor:
        """Ids on the tables' device. The host does not wait for work that is queued there."""
        if self.device.type == "cuda" and not ids_L.is_cuda:
            # A pinned copy of our own, which nobody overwrites while it is read.
            ids_L = ids_L.pin_memory()
        return ids_L.to(self.device, non_blocking=True)

    def _pooled(
        self, table: Table, ids_L: torch.Tensor, offsets_B: torch.Tensor, weights_L: torch.Tensor | None
    ) -> torch.Tensor:
        ids_L, offsets_B = self._placed(ids_L), offsets_B.to(self.device)
        weights_L = None if weights_L is None else weights_L.to(self.device)
        shards = self._shards[table.name]
        if len(shards) == 1:
            return pooled_rows(shards[0], ids_L, offsets_B, weights_L).to(table.dtype)
        rows, places = self._lookup(table, ids_L), torch.arange(len(ids_L), device=self.device)
        return pooled_rows(rows, places, offsets_B, weights_L).to(table.dtype)

    def close(self) -> None:
        super().close()
        self._shards = {}


class MappedTables(LocalTables):
    """Tables in files that are mapped into memory: the system reads the pages that calls touch.

    Args:
        folder: The store, of any number of shards.
        thorough: Whether all bytes are compared with their digests, see `tables.shards.open_shard`.

    Raises:
        UserError: A shard is not as the manifest says.
    """

    def __init__(self, folder: Path, thorough: bool = True) -> None:
        manifest = read_manifest(folder)
        shards = {
            stored.table.name: [open_shard(manifest, stored, shard, thorough) for shard in stored.shards]
            for stored in manifest.tables.values()
        }
        super().__init__(manifest, shards, torch.device("cpu"))


class DeviceTables(LocalTables):
    """Tables in the memory of one device.

    Args:
        folder: The store, of any number of shards.
        device: The device, such as `cuda` or `cuda:1`; `cpu` copies the tables into memory.
        thorough: As of `MappedTables`.

    Raises:
        UserError: The device is absent or too small, or a shard is not as the manifest says.
    """

    def __init__(self, folder: Path, device: str = "cuda", thorough: bool = True) -> None:
        manifest = read_manifest(folder)
        here = usable_device(device)
        needed = sum(stored.table.rows * stored.table.row_bytes for stored in manifest.tables.values())
        require_room(here, folder, needed)
        shards = {}
        for name, stored in manifest.tables.items():
            table = stored.table
            whole = torch.empty(table.rows, table.columns, dtype=table.dtype, device=here)
            for shard in stored.shards:
                rows = open_shard(manifest, stored, shard, thorough)
                whole[shard.first_row : shard.first_row + shard.rows].copy_(rows)
            shards[name] = [whole]
        super().__init__(manifest, shards, here)


def usable_device(name: str, count: int = 1) -> torch.device:
    """The device of this name.

    Args:
        name: `cpu`, `cuda`, or `cuda:` and a number.
        count: Number of GPUs that `cuda` has to have.

    Raises:
        UserError: It is another device, or the machine lacks it.
    """
    fix = "choose cpu, or a machine with the GPU"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError("device", name, "is no device of PyTorch", "choose cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError("device", name, "is neither cpu nor cuda", "choose one of them")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError("device", name, "is absent: PyTorch finds no GPU here", fix)
        needed = max(count, (device.index or 0) + 1)
        if torch.cuda.device_count() < needed:
            problem = f"needs {needed} GPUs, and this machine has {torch.cuda.device_count()}"
            raise UserError("device", name, problem, fix)
    return device


def require_room(device: torch.device, folder: Path, needed: float) -> None:
    """Raises `UserError` if a device lacks the bytes for the tables of a store."""
    if device.type == "cpu":
        require("tables", str(folder), needed, "map them (MappedTables), or shard them over several machines")
        return
    free = torch.cuda.mem_get_info(device)[0]
    if needed > free:
        problem = f"needs {needed / 2**30:.3g} GiB on {device}, and {free / 2**30:.3g} GiB are free"
        raise UserError("tables", str(folder), problem, "shard the tables over more GPUs, or map them")


def pooled_rows(
    rows: torch.Tensor, ids_L: torch.Tensor, offsets_B: torch.Tensor, weights_L: torch.Tensor | None
) -> torch.Tensor:
    """(B, E) float32: the sums of bags of rows. PyTorch's own sum of half types rounds to them."""
    if len(offsets_B) == 0:
        return torch.zeros(0, rows.shape[1], device=rows.device)
    if rows.dtype != torch.float32:
        rows = rows.index_select(0, ids_L).float()
        ids_L = torch.arange(len(ids_L), device=rows.device)
    return torch.nn.functional.embedding_bag(ids_L, rows, offsets_B, mode="sum", per_sample_weights=weights_L)
