"""Engines of one process: rows bit for bit, pooled sums within the verdict's bound, bad arguments refused."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.base.errors import UserError
from tables.local import DeviceTables, MappedTables
from tables.shards import check_probes
from tables.store import read_manifest
from tests.tables.pooling import assert_pooled, drawn_bags
from tests.tables.stores import numbers, store

TABLES = numbers()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    return {ranks: store(folder / str(ranks), TABLES, ranks) for ranks in (1, 3)}


def in_memory(folder):
    return DeviceTables(folder, "cpu")


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("engine", [MappedTables, in_memory], ids=["mapped", "device"])
def test_rows_are_equal_bit_for_bit(folders, engine, ranks):
    with engine(folders[ranks]) as tables:
        assert set(tables.tables) == set(TABLES)
        for name, rows in TABLES.items():
            ids = torch.randint(0, len(rows), (4, 25))
            found = tables.lookup(name, ids)
            assert found.dtype == rows.dtype
            assert torch.equal(found, rows[ids])
            assert torch.equal(tables.lookup(name, torch.arange(len(rows), dtype=torch.int32)), rows)
            assert tables.lookup(name, torch.empty(2, 0, dtype=torch.int64)).shape == (2, 0, rows.shape[1])
        check_probes(tables, read_manifest(folders[ranks]))


def test_a_folder_s_name_is_any_bytes(tmp_path):
    """PyTorch's own reader of files takes UTF-8 alone."""
    rows = torch.rand(5, 2)
    with MappedTables(store(tmp_path / os.fsdecode(b"\xff"), {"a": rows}, 2)) as tables:
        assert torch.equal(tables.lookup("a", torch.arange(5)), rows)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", TABLES)
@given(seed=st.integers(0, 2**32), bags=st.integers(0, 6), longest=st.integers(0, 60), weighted=st.booleans())
@settings(max_examples=15, deadline=None)
def test_pooled_sums_are_within_the_bound(folders, name, ranks, seed, bags, longest, weighted):
    with MappedTables(folders[ranks]) as tables:
        assert_pooled(
            tables, name, TABLES[name], *drawn_bags(len(TABLES[name]), seed, bags, longest, weighted)
        )


def test_a_pooled_sum_by_hand(tmp_path):
    rows = torch.tensor([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
    with MappedTables(store(tmp_path / "s", {"a": rows}, 2)) as tables:
        ids, offsets = torch.tensor([2, 0, 0, 1]), torch.tensor([0, 2, 2, 3])
        assert tables.pooled("a", ids, offsets).tolist() == [[101, 202], [0, 0], [1, 2], [10, 20]]
        weights = torch.tensor([0.5, 3.0, -1.0, 2.0])
        assert tables.pooled("a", ids, offsets, weights).tolist() == [[53, 106], [0, 0], [-1, -2], [20, 40]]


def test_half_types_are_summed_in_float32(tmp_path):
    rows = torch.tensor([[2048.0], [1.0]]).half()
    with MappedTables(store(tmp_path / "s", {"a": rows})) as tables:
        # In float16, 2048 + 1 is 2048.
        ids = torch.tensor([0, 1, 1])
        assert tables.pooled("a", ids, torch.tensor([0])).item() == 2050


IDS = torch.tensor([3, 4, 5])


@pytest.mark.parametrize(
    ("call", "field", "problem"),
    [
        (lambda t: t.lookup("itme", IDS), "table", "is not known"),
        (
            lambda t: t.lookup("item", torch.tensor([[0, 1], [-1, 0]])),
            "ids of table item, position 2",
            "0..100",
        ),
        (
            lambda t: t.lookup("item", torch.tensor([101])),
            "ids of table item, position 0",
            "is no row of 0..100",
        ),
        (lambda t: t.lookup("item", IDS.float()), "ids of table item", "is no tensor of int64 or int32"),
        (lambda t: t.lookup("item", [1, 2]), "ids of table item", "is no tensor"),
        (lambda t: t.pooled("item", IDS[None], torch.tensor([0])), "ids of table item", "single axis"),
        (lambda t: t.pooled("item", IDS, torch.tensor([1])), "offsets of table item[0]", "without a bag"),
        (lambda t: t.pooled("item", IDS, IDS[:0]), "offsets of table item[0]", "without a bag"),
        (
            lambda t: t.pooled("item", IDS, torch.tensor([0, 2, 1])),
            "offsets of table item[1]",
            "behind the end",
        ),
        (lambda t: t.pooled("item", IDS, torch.tensor([0, 4])), "offsets of table item[1]", "behind the end"),
        (lambda t: t.pooled("item", IDS, torch.tensor([0.0])), "offsets of table item", "int64"),
        (lambda t: t.pooled("item", IDS, torch.tensor([0]), torch.ones(2)), "weights of table item", "(3,)"),
        (lambda t: t.pooled("item", IDS, torch.tensor([0]), IDS), "weights of table item", "is not float32"),
    ],
    ids=[
        *("table", "negative", "beyond", "float", "list", "axes", "first", "none", "order", "end", "type"),
        *("weights", "weights' type"),
    ],
)
def test_bad_arguments_are_refused(folders, call, field, problem):
    with MappedTables(folders[1], thorough=False) as tables:
        with pytest.raises(UserError) as caught:
            call(tables)
        assert caught.value.field == field
        assert problem in str(caught.value)
        assert caught.value.fix


def test_closed_tables_say_so(folders):
    with MappedTables(folders[1]) as tables:
        pass
    with pytest.raises(ValueError, match="closed"):
        tables.lookup("item", IDS)


@pytest.mark.parametrize(
    ("device", "problem"),
    [("tpu", "is no device"), ("meta", "neither cpu nor cuda"), ("cuda", "PyTorch finds no GPU here")],
)
def test_a_device_that_is_not_there_is_refused(folders, monkeypatch, device, problem):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=problem) as caught:
        DeviceTables(folders[1], device)
    assert caught.value.field == "device"


def test_a_gpu_of_a_number_that_is_not_there_is_refused(folders, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="needs 2 GPUs, and this machine has 1"):
        DeviceTables(folders[1], "cuda:1")


def test_tables_larger_than_the_memory_are_refused(folders, monkeypatch):
    monkeypatch.setattr("parity.base.memory.available", lambda: 2000.0)
    with pytest.raises(UserError, match="of memory") as caught:
        DeviceTables(folders[1], "cpu")
    assert caught.value.field == "tables"


def test_an_engine_with_a_wrong_row_is_refused_by_the_known_rows(folders):
    manifest = read_manifest(folders[3])
    tables = MappedTables(folders[3])
    honest = tables._lookup
    # Every row of rank 2 is its neighbour's.
    tables._lookup = lambda table, ids: honest(table, torch.where(ids >= 68, ids - 1, ids))
    with pytest.raises(UserError, match="is not the row that the store's manifest knows") as caught:
        check_probes(tables, manifest)
    assert caught.value.field == "rank 2, table item"
