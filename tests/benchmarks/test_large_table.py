"""The program of a table larger than a GPU, with a small table on two processes of a CPU."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.gpu import large_table
from benchmarks.gpu.large_table import COMPARED, compared, judged, manifest_of, rows_of, served

pytestmark = pytest.mark.xdist_group("tables")

SETTINGS = {
    "case": "dlrmv3_tiny",
    "rows": 20_001,
    "precision": "fp32",
    "runner": "tripy",
    "samples": 4,
    "tokens": None,
    "seconds": 0.1,
}


@pytest.fixture(scope="module")
def facts():
    """The facts of two ranks, with their answers."""
    kept = pytest.MonkeyPatch()
    kept.setattr(large_table, "judged", lambda settings, ranks: None)
    try:
        return served(SETTINGS, 2, "cpu", 300.0)
    finally:
        kept.undo()


def copied(facts):
    return [dict(rank, answers=[(n, values.copy()) for n, values in rank["answers"]]) for rank in facts]


def test_each_rank_serves_from_both_parts(facts):
    assert [rank["rank"] for rank in facts] == [0, 1]
    assert sum(rank["bytes"] for rank in facts) == 20_001 * 9 * 2
    for rank in facts:
        assert rank["is_right"]
        assert rank["compared"] == COMPARED + 4
        assert 0.4 < rank["of_other_ranks"] / rank["compared"] < 0.6
        assert rank["queries_per_s"] > 0
        assert rank["batches"] >= 1


def test_predictions_are_judged(facts):
    ranks = copied(facts)
    judged(SETTINGS, ranks)
    for rank in ranks:
        assert rank["verdict"] == "PASS"
        assert rank["predictions"] > 0
        assert "answers" not in rank


def test_a_wrong_prediction_of_one_rank_fails(facts):
    ranks = copied(facts)
    ranks[1]["answers"][2][1][-1] += 0.1
    judged(SETTINGS, ranks)
    assert [rank["verdict"] for rank in ranks] == ["PASS", "FAIL"]
    assert "the port alone is right on it" in ranks[1]["line"]


def test_rows_are_exact_and_other_ones_for_every_id():
    rows = rows_of(torch.arange(5000), 12)
    assert rows.dtype == torch.float16
    assert len(torch.unique(rows, dim=0)) == 5000
    assert torch.equal(rows * 64, (rows * 64).round())
    assert (rows.min().item(), rows.max().item()) == (-2.0, 127 / 64)
    # A whole number of half the table's rows further on, too.
    assert not torch.equal(rows_of(torch.tensor(3), 12), rows_of(torch.tensor(3 + 2**27), 12))


@pytest.mark.parametrize("shift", [0, 1, 70_800_000])
def test_a_row_of_another_id_is_no_right_row(shift):
    manifest = manifest_of(141_600_000, 4, 2)
    items = SimpleNamespace(
        rank=0, device=torch.device("cpu"), lookup=lambda name, ids: rows_of((ids + shift) % 141_600_000, 4)
    )
    assert compared(items, manifest)["is_right"] is (shift == 0)


def test_shards_are_blocks_of_rows_with_known_rows():
    (stored,) = manifest_of(11, 4, 3).tables.values()
    assert [(shard.first_row, shard.rows) for shard in stored.shards] == [(0, 4), (4, 4), (8, 3)]
    for shard in stored.shards:
        places = [row for row, _ in shard.probes]
        assert places[0] == shard.first_row
        assert places[-1] == shard.first_row + shard.rows - 1


def test_the_reference_has_the_same_rows():
    rows = large_table.ItemRows(100, 6)
    ids = np.array([[0, 99], [7, 7]])
    assert len(rows) == 100
    assert np.array_equal(rows[ids], rows_of(torch.from_numpy(ids), 6).float().numpy())
