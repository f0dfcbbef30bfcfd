"""Tables on GPUs: rows bit for bit on one, and rows and sums from GPU to GPU on two."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tables.local import DeviceTables
from tables.rank_process import ENGINES
from tables.sharded import ShardedTables
from tests.tables.pooling import assert_pooled, drawn_bags
from tests.tables.stores import numbers, store

GPUS = torch.cuda.device_count()
TABLES = numbers()

on_a_gpu = pytest.mark.skipif(GPUS < 1, reason="tables on a GPU need a GPU; PyTorch finds none here")
on_two_gpus = pytest.mark.skipif(
    GPUS < 2, reason=f"rows from GPU to GPU need two GPUs; PyTorch finds {GPUS} here"
)


def assert_right(tables):
    generator = torch.Generator().manual_seed(3)
    for name, rows in TABLES.items():
        ids = torch.randint(len(rows), (5, 7), generator=generator)
        assert torch.equal(tables.lookup(name, ids).cpu(), rows[ids])


@on_a_gpu
def test_rows_of_a_gpu_are_the_table_s(tmp_path):
    with DeviceTables(store(tmp_path / "store", TABLES, 2, "rows"), "cuda") as tables:
        assert_right(tables)


@on_a_gpu
def test_ids_of_the_host_do_not_wait_for_the_gpu(tmp_path):
    with DeviceTables(store(tmp_path / "store", TABLES, 2, "tables"), "cuda") as tables:
        name, rows = next(iter(TABLES.items()))
        # More than a copy's staging area holds.
        ids = torch.arange(1 << 18) % len(rows)
        tables.lookup(name, ids)
        torch.cuda.synchronize()
        torch.cuda._sleep(1 << 30)
        looked_up = tables.lookup(name, ids)
        assert not torch.cuda.current_stream().query()
        assert torch.equal(looked_up.cpu(), rows[ids])


@on_two_gpus
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("by", ["rows", "tables"])
def test_rows_and_sums_of_two_gpus_are_the_table_s(tmp_path, by, engine):
    with ShardedTables(store(tmp_path / "store", TABLES, 2, by), "cuda", engine=engine) as tables:
        assert_right(tables)
        on_host = SimpleNamespace(pooled=lambda *bags: tables.pooled(*bags).cpu())
        for name, rows in TABLES.items():
            assert_pooled(on_host, name, rows, *drawn_bags(len(rows), 4, 9, 6, weighted=True))
