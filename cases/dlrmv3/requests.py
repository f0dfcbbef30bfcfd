"""The benchmark's requests for a served case, and the tables that hold their rows.

Tables have numbers of our own, from a seed. The reference reads them in memory. The server looks them up in a
store on disk, mapped into memory.

Legend: B requests, H rows of a padded history, T candidates at most, C contextual rows, E columns of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch

from cases.data_errors import as_user_errors
from cases.dlrmv3.inputs import ACTIONS, CONTEXT
from configs import DLRMv3CaseConfig
from datasets.dlrmv3 import in_order, streaming
from datasets.dlrmv3.generator import Settings
from parity.base.errors import UserError
from parity.case.serving import DeviceLookup, Drawn, Lookup
from tables.interface import Tables
from tables.local import DeviceTables, MappedTables
from tables.store import Source, write

ITEM, CATEGORY, USER = "item_id", "item_category_id", "user_id"
"""Names of the public tables."""
MOST_ROWS = 1 << 16
"""Rows of the largest table. Greater numbers take the rows of their remainders."""
NO_ROW = -1
"""Number of a row that is padding."""
_STEPS = 32
"""Numbers of the tables are multiples of the inverse, so that every precision holds them exactly."""


def settings_of(config: DLRMv3CaseConfig) -> Settings:
    """Sizes of the data that a case names; without a name, the first whose candidates fit.

    These are the benchmark's, small or tiny data.
    """
    if config.requests is not None:
        return streaming.SETTINGS[config.requests]
    for settings in (Settings(), streaming.SMALL):
        if config.model.max_num_candidates >= settings.num_inference_candidates:
            return settings
    return streaming.TINY


class BenchmarkRequests:
    """Requests of the benchmark for a case.

    Args:
        config: The case.
        seed: Seed of the tables.
    """

    def __init__(self, config: DLRMv3CaseConfig, seed: int) -> None:
        model = config.model
        self._model, self._settings = model, settings_of(config)
        settings, lengths = self._settings, model.contextual_max_lengths
        # The benchmark's context is the user. Features behind it have rows of the user's own, too.
        self._context = [USER if place == 0 else f"context_{place}" for place in range(len(lengths))]
        counts = {ITEM: settings.num_items, CATEGORY: settings.num_categories}
        counts |= {name: settings.num_users * n for name, n in zip(self._context, lengths, strict=True)}
        self._tables = {
            name: _rows(seed, number, min(count, MOST_ROWS), model.embedding_table_dim)
            for number, (name, count) in enumerate(counts.items())
        }

    def draw(self, count: int, data: Path | None) -> Drawn:
        """Requests in the benchmark's order, of a folder or generated."""
        model, settings = self._model, self._settings
        lengths = (model.max_uih_len, model.max_num_candidates)
        with as_user_errors():
            if data is None:
                requests = in_order.generated(settings, count, *lengths)
            else:
                requests = in_order.recorded(data, settings, count, *lengths)
        is_event_BH = np.arange(model.max_uih_len) < requests.uih_lengths[:, None]
        is_candidate_BT = requests.is_candidate()
        ids = {
            "uih_embeddings": np.where(is_event_BH, requests.items, NO_ROW),
            "candidate_embeddings": np.where(is_candidate_BT, requests.candidates, NO_ROW),
        }
        per_category = settings.items_per_category
        ids |= {
            name.replace("_emb", "_category_emb"): np.where(rows == NO_ROW, NO_ROW, rows // per_category)
            for name, rows in ids.items()
        }
        if self._context:
            ids[CONTEXT] = np.concatenate(
                [requests.users[:, None] * n + np.arange(n) for n in model.contextual_max_lengths], axis=1
            )
        arrays = {
            "uih_lengths": requests.uih_lengths,
            "num_candidates": requests.num_candidates,
            "uih_timestamps": streaming.MOMENT * is_event_BH,
            "query_times": streaming.MOMENT * is_candidate_BT,
        }
        if model.action_weights is not None:
            arrays[ACTIONS] = requests.actions
        arrays |= {name: self._rows_of(name, rows, self._in_memory) for name, rows in ids.items()}
        origin = "generated" if data is None else f"read from {data}"
        source = f"the benchmark's, {origin}: {settings.num_users} users, {settings.num_items} items"
        return Drawn(arrays, source, ids)

    @contextmanager
    def tables(self, folder: Path) -> Iterator[Lookup]:
        """Rows from a store, which is written if it is absent."""
        self._write(folder)
        with MappedTables(folder) as store:
            self._require(store, folder)
            yield partial(
                self._rows_of, take=lambda table, ids: store.lookup(table, torch.from_numpy(ids)).numpy()
            )

    @contextmanager
    def device_tables(self, folder: Path, device: str) -> Iterator[DeviceLookup]:
        """The same rows on a device."""
        self._write(folder)
        with DeviceTables(folder, device) as store:
            self._require(store, folder)
            yield partial(self._device_rows, take=store.lookup)

    def _write(self, folder: Path) -> None:
        if not folder.exists():
            write(folder, [Source.of(name, torch.from_numpy(rows)) for name, rows in self._tables.items()])

    def _require(self, store: Tables, folder: Path) -> None:
        for name, rows in self._tables.items():
            table = store.tables.get(name)
            if table is None or (table.rows, table.columns, table.dtype) != (*rows.shape, torch.float32):
                problem = f"has no table {name} of float32 {rows.shape}"
                raise UserError("--tables", str(folder), problem, "give the tables of this case")

    def _in_memory(self, table: str, ids: np.ndarray) -> np.ndarray:
        return self._tables[table][ids]

    def _rows_of(self, name: str, ids: np.ndarray, take: Lookup) -> np.ndarray:
        """(..., E), the rows of an input, zeros for `NO_ROW`; `take` has those of a table."""
        rows = []
        for table, own in self._parts(name, ids):
            taken = np.zeros((*own.shape, self._model.embedding_table_dim), np.float32)
            is_row = own != NO_ROW
            taken[is_row] = take(table, own[is_row] % len(self._tables[table]))
            rows.append(taken)
        return np.concatenate(rows, axis=1)

    def _device_rows(
        self, name: str, ids: np.ndarray, take: Callable[[str, torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """(..., E), the rows of an input, any for `NO_ROW`. Numbers are checked on the host."""
        rows = [
            take(table, torch.from_numpy(np.maximum(own, 0) % len(self._tables[table])))
            for table, own in self._parts(name, ids)
        ]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)

    def _parts(self, name: str, ids: np.ndarray) -> list[tuple[str, np.ndarray]]:
        """The tables of an input, each with the numbers of its rows."""
        if name != CONTEXT:
            return [(CATEGORY if "category" in name else ITEM, ids)]
        ends = np.cumsum(self._model.contextual_max_lengths)[:-1]
        return list(zip(self._context, np.split(ids, ends, axis=1), strict=True))


def _rows(seed: int, number: int, count: int, columns: int) -> np.ndarray:
    """The rows of a table, float32."""
    rng = np.random.default_rng([seed, 0x7AB, number])
    return np.rint(_STEPS * rng.standard_normal((count, columns), dtype=np.float32)) / np.float32(_STEPS)
