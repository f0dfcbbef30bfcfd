"""Stores on disk: what is written is read, and damaged or unfit shards are named with rank and table."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.base.errors import UserError
from parity.base.sealed import sealed
from tables.interface import Table
from tables.shards import open_shard
from tables.store import MANIFEST, Source, read_manifest, write
from tests.tables.faults import FAULTS, one_bit, store_with
from tests.tables.stores import numbers, relabel, store


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 9),
    ranks=st.integers(1, 5),
    by=st.sampled_from(["rows", "tables"]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
@settings(max_examples=25, deadline=None)
def test_every_row_is_in_one_shard_bit_for_bit(tmp_path_factory, rows, columns, ranks, by, dtype):
    tables = numbers({"a": (rows, columns, dtype), "b": (2 * rows, 1, dtype)})
    folder = store(tmp_path_factory.mktemp("store") / "s", tables, ranks, by)
    manifest = read_manifest(folder)
    for name, stored in manifest.tables.items():
        shards = [open_shard(manifest, stored, shard) for shard in stored.shards]
        assert torch.equal(torch.cat(shards), tables[name])
        firsts = [shard.first_row for shard in stored.shards]
        assert firsts == sorted(firsts)
        assert all(0 <= shard.rank < ranks for shard in stored.shards)
        assert by == "rows" or len(stored.shards) == 1
    assert {(s.table.name, shard.rank) for rank in range(ranks) for s, shard in manifest.on(rank)} == {
        (name, shard.rank) for name, stored in manifest.tables.items() for shard in stored.shards
    }


def test_whole_tables_go_to_the_rank_with_the_fewest_bytes(tmp_path):
    tables = {name: torch.zeros(rows, 1) for name, rows in (("a", 1), ("b", 5), ("c", 3), ("d", 2))}
    manifest = read_manifest(store(tmp_path / "s", tables, 2, "tables"))
    ranks = {name: stored.shards[0].rank for name, stored in manifest.tables.items()}
    assert ranks == {"b": 0, "c": 1, "d": 1, "a": 0}


def test_a_table_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("tables.store._PIECE", 3 * 4 * 2)
    rows, asked = torch.arange(20.0).view(10, 2), []

    def read(first, count):
        asked.append((first, count))
        return rows[first : first + count]

    source = Source(Table("a", 10, 2, torch.float32), read)
    manifest = write(tmp_path / "s", [source], 2)
    assert asked == [(0, 3), (3, 2), (5, 3), (8, 2)]
    (stored,) = manifest.tables.values()
    assert torch.equal(torch.cat([open_shard(manifest, stored, s) for s in stored.shards]), rows)


@pytest.mark.parametrize(
    ("sources", "ranks", "field", "problem"),
    [
        ([], 1, "tables", "empty"),
        ([Source.of("a", torch.zeros(1, 1))], 0, "ranks", "less than 1"),
        ([Source.of("../a", torch.zeros(1, 1))], 1, "table", "no name"),
        ([Source.of("a", torch.zeros(1, 1))] * 2, 1, "table", "of its own"),
        ([Source.of("a", torch.zeros(0, 1))], 1, "table a", "has no number"),
        ([Source.of("a", torch.zeros(1, 1, dtype=torch.float64))], 1, "table a", "is not one of float32"),
        (
            [Source(Table("a", 3, 2, torch.float32), lambda first, count: torch.zeros(count, 3))],
            1,
            "table a",
            "is not float32",
        ),
    ],
    ids=["none", "ranks", "name", "twice", "empty", "type", "source"],
)
def test_bad_tables_are_refused_and_leave_no_folder(tmp_path, sources, ranks, field, problem):
    with pytest.raises(UserError, match=problem) as caught:
        write(tmp_path / "s", sources, ranks)
    assert caught.value.field == field
    assert list(tmp_path.iterdir()) == []


def test_a_store_takes_no_other_s_place(tmp_path):
    folder = store(tmp_path / "s", numbers())
    before = (folder / MANIFEST).read_bytes()
    with pytest.raises(UserError, match="exists"):
        store(folder, numbers(seed=1))
    assert (folder / MANIFEST).read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "is damaged"),
        (
            lambda path: relabel(path, lambda content: content.update(schema="tables/9")),
            "has schema tables/9",
        ),
    ],
    ids=["missing", "cut", "schema"],
)
def test_a_manifest_that_cannot_be_used_is_refused(tmp_path, damage, problem):
    folder = store(tmp_path / "s", numbers())
    damage(folder / MANIFEST)
    with pytest.raises(UserError, match=problem):
        read_manifest(folder)


FORGERIES = {
    "no tables": lambda content: content.update(tables=None),
    "an empty list of tables": lambda content: content.update(tables=[]),
    "a table twice": lambda content: content["tables"].append(content["tables"][0]),
    "no rank": lambda content: content.update(ranks=0),
    "ranks as text": lambda content: content.update(ranks="2"),
    "a field more": lambda content: content.update(more=1),
    "a path as a name": lambda content: content["tables"][0].update(name="../a"),
    "another type": lambda content: content["tables"][0].update(dtype="int8"),
    "rows with a point": lambda content: content["tables"][0].update(rows=101.0),
    "rows that no shard has": lambda content: content["tables"][0].update(rows=10**9),
    "no shard": lambda content: content["tables"][0].update(shards=[]),
    "a shard less": lambda content: content["tables"][0]["shards"].pop(),
    "a shard of a rank beyond the last": lambda content: content["tables"][0]["shards"][1].update(rank=9),
    "two shards of a rank": lambda content: content["tables"][0]["shards"][1].update(rank=0),
    "a shard that begins below 0": lambda content: content["tables"][0]["shards"][0].update(first_row=-1),
    "no known row": lambda content: content["tables"][0]["shards"][0].update(probes=[]),
    "a known row elsewhere": lambda content: content["tables"][0]["shards"][0].update(probes=[[10**9, "a"]]),
    "another digest": lambda content: content["tables"][0]["shards"][0].update(sha256="0" * 64),
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_a_manifest_whose_parts_contradict_each_other_is_refused(tmp_path, forgery):
    folder = store(tmp_path / "s", numbers(), 2)
    relabel(folder / MANIFEST, forgery)
    with pytest.raises(UserError, match=r"manifest\.json describes no store \("):
        read_manifest(folder)


@pytest.mark.parametrize("entry", [[], [1], "x", None, {"first_row": "x"}, {}], ids=str)
def test_an_entry_that_describes_no_shard_is_refused(tmp_path, entry):
    folder = store(tmp_path / "s", numbers(), 2)
    manifest = read_manifest(folder)
    stored = manifest.tables["item"]
    path = manifest.path(stored, stored.shards[1], "json")
    label = stored.label(stored.shards[1])
    path.write_bytes(sealed({**label, **entry} if entry and isinstance(entry, dict) else entry))
    with pytest.raises(UserError, match="has a damaged entry|has schema None|is off by some rows"):
        open_shard(manifest, stored, stored.shards[1])


@pytest.mark.parametrize("thorough", [True, False])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_shard_s_fault_is_named_with_rank_and_table(tmp_path, fault, thorough):
    folder = store_with(fault, tmp_path)
    manifest = read_manifest(folder)
    stored = manifest.tables["item"]
    open_shard(manifest, stored, stored.shards[0], thorough)
    if fault is one_bit and not thorough:
        # Only the digest of all bytes sees a row that is no probe.
        open_shard(manifest, stored, stored.shards[1], thorough)
        return
    with pytest.raises(UserError, match=FAULTS[fault]) as caught:
        open_shard(manifest, stored, stored.shards[1], thorough)
    assert caught.value.field == "rank 1, table item"
    assert caught.value.fix
