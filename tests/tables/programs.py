"""Programs that tests run in ranks."""

from __future__ import annotations

import os
import time

import torch

from cases.shipped import load_case
from parity.inputs.weights import case_weights
from tables.exchange import RankTables
from tables.peer import PeerTables
from tests.tables.dense import embedded, predictions, requests


def own_rows(tables: RankTables, name: str) -> list[list[torch.Tensor]]:
    """Ids, rows and pooled sums of this rank: as many ids as its number, so that rank 0 has none."""
    ids = torch.arange(tables.rank * 10) % tables.tables[name].rows
    offsets = torch.arange(0, len(ids), 5)
    results = [ids, tables.lookup(name, ids), tables.pooled(name, ids, offsets)]
    # By value: tensors would be shared with the parent, which ends this process.
    return [result.double().tolist() for result in results]


def dense_part(tables: RankTables, name: str) -> list:
    """Predictions of a case for every user whose number has this rank, from rows of the tables."""
    case = load_case(name)
    arrays, ids = requests(case)
    rows = torch.arange(tables.rank, case.batch_size_of(arrays), tables.ranks).numpy()
    own = {key: value[rows] for key, value in arrays.items()}
    own_ids = {key: value[rows] for key, value in ids.items()}
    weights, _ = case_weights(case)
    return predictions(case, weights, embedded(tables, own, own_ids)).tolist()


def one_calls_alone(tables: PeerTables, rank: int) -> float:
    """The sum of all rows of a table in one rank, while the others make no call."""
    rows = tables.lookup("item", torch.arange(tables.tables["item"].rows if tables.rank == rank else 0))
    return rows.double().sum().item()


def fails(tables: RankTables, rank: int) -> None:
    """Raise in one rank, while the others wait for it."""
    if tables.rank == rank:
        raise RuntimeError("the dense part is broken")
    tables.lookup("item", torch.tensor([0]))


def asks_for_a_bad_row(tables: RankTables, rank: int) -> None:
    """Ask for a row beyond the table in one rank, while the others wait for it."""
    tables.lookup("item", torch.tensor([10**6 if tables.rank == rank else 0]))


def dies(tables: RankTables, rank: int, number: int) -> None:
    """Die in one rank of a signal, while the others wait for it."""
    if tables.rank == rank:
        os.kill(os.getpid(), number)
    tables.lookup("item", torch.tensor([0]))


def exits(tables: RankTables, rank: int) -> None:
    """End one rank with an exit code."""
    if tables.rank == rank:
        os.write(1, b"no space is left\n")
        os._exit(3)
    tables.lookup("item", torch.tensor([0]))


def hangs(tables: RankTables, rank: int) -> None:
    """Sleep in one rank."""
    if tables.rank == rank:
        time.sleep(600)
