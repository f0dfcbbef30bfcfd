"""`parity.compare` on ports that look up the rows of a bag, and add them up in the code behind."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from tests.parity.live_models import modules

ROWS, WIDTH = 15, 6
RNG = np.random.default_rng(0)
IDS = RNG.integers(1, ROWS, (28, 4))
IDS[np.arange(4) >= RNG.integers(0, 5, (28, 1))] = 0


class Bag(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.EmbeddingBag(ROWS, WIDTH, mode="mean", padding_idx=0)
        self.head = torch.nn.Linear(WIDTH, 3)

    def forward(self, ids):
        return self.head(self.table(ids))


class BagPort(tp.Module):
    def __init__(self, dtype, fault=""):
        super().__init__()
        self.fault = fault
        self.table = tp.Embedding(ROWS, WIDTH, dtype=dtype)
        self.head = tp.Linear(WIDTH, 3, dtype=dtype)

    def forward(self, ids):
        rows = self.table(ids + 1 if self.fault == "ids" else ids)
        valid = tp.cast(tp.unsqueeze(ids != 0, 2), rows.dtype)
        total = tp.sum(rows if self.fault == "padding" else rows * valid, dim=1)
        return self.head(total / tp.maximum(tp.sum(valid, dim=1), 1.0))


def judged(fault=""):
    return parity.compare(Bag(), lambda dtype: BagPort(dtype, fault), {"ids": IDS}, ("fp32",))


def test_a_table_in_place_of_a_bag_is_a_note():
    result = judged()
    assert result.passed, result
    table = modules(result)["table"]
    expected = ("GAP", "the port looks its rows up alone; the results behind them are judged")
    assert (table.status, table.gap) == expected


@pytest.mark.parametrize(
    ("fault", "text"), [("ids", "table receives another input"), ("padding", "head receives another input")]
)
def test_a_table_in_place_of_a_bag_hides_no_fault(fault, text):
    assert text in str(judged(fault))


class Rows(torch.nn.Module):
    """A bag with one result for each row of a matrix of ids, which the port gives another axis."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(ROWS, WIDTH)
        self.head = torch.nn.Linear(WIDTH, 3)

    def forward(self, ids):
        return self.head(self.table(ids[:, 0]))


def test_another_layer_than_a_bag_has_the_reference_s_shape():
    result = parity.compare(Rows(), BagPort, {"ids": IDS}, ("fp32",))
    assert "shape (28, 4, 6) differs from the reference's (28, 6)" in str(result)
