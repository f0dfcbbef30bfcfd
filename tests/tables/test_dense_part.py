"""DLRMv3's dense part behind each engine: the embeddings and the predictions are those of its own tables."""

import functools

import numpy as np
import pytest
import torch

from cases.shipped import load_case
from parity.inputs.weights import case_weights
from tables.local import DeviceTables, MappedTables
from tables.ranks import run
from tables.sharded import ShardedTables
from tests.tables.dense import embedded, predictions, requests, tables_of
from tests.tables.stores import store

pytestmark = pytest.mark.xdist_group("tables")

CASE = "dlrmv3_tiny"
ENGINES = {
    "mapped": (MappedTables, 1, "rows"),
    "mapped, 3 shards": (MappedTables, 3, "rows"),
    "device": (lambda folder: DeviceTables(folder, "cpu"), 2, "rows"),
    "rows on 3": (ShardedTables, 3, "rows"),
    "tables on 2": (ShardedTables, 2, "tables"),
    "rows on 3, read in place": (functools.partial(ShardedTables, engine="peer"), 3, "rows"),
}


@pytest.fixture(scope="module")
def expected():
    """The case, its arrays, ids, weights and predictions."""
    case = load_case(CASE)
    arrays, ids = requests(case)
    weights, _ = case_weights(case)
    return case, arrays, ids, weights, predictions(case, weights, arrays)


@pytest.mark.parametrize("engine", ENGINES)
def test_embeddings_and_predictions_are_equal_bit_for_bit(tmp_path, expected, engine):
    case, arrays, ids, weights, wanted = expected
    make, ranks, by = ENGINES[engine]
    with make(store(tmp_path / "s", tables_of(case), ranks, by)) as tables:
        served = embedded(tables, arrays, ids)
    for name, array in arrays.items():
        assert served[name].dtype == array.dtype
        assert np.array_equal(served[name], array), name
    assert torch.equal(predictions(case, weights, served), wanted)


def test_the_dense_part_runs_in_the_ranks(tmp_path, expected):
    case, arrays, ids, weights, _ = expected
    folder = store(tmp_path / "s", tables_of(case), 2)
    results = run(folder, "tests.tables.programs:dense_part", (CASE,))
    for rank, result in enumerate(results):
        own = {name: array[rank::2] for name, array in arrays.items()}
        assert torch.equal(torch.tensor(result), predictions(case, weights, own))
