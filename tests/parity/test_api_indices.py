"""`parity.compare` where the reference looks up an index that its table does not have: bad input, by name."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity.capture.indices import IndexOutside
from parity.capture.longest_sums import LongestSums

ROWS, WIDTH, BATCH = 9, 4, 6
OPTIONS = {"unused": ("bag.weight",), "functional": ("bag",)}


class Table(torch.nn.Module):
    """Looks rows up in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.table = torch.nn.Embedding(ROWS, WIDTH)
        self.bag = torch.nn.EmbeddingBag(ROWS, WIDTH, mode="sum")
        self.way = way

    def forward(self, ids, x):
        rows = self.table.weight
        if self.way == "embedding":
            return self.table(ids).sum(1) + x
        if self.way == "column":
            return self.table(ids[:, 1].long()) + x
        if self.way == "beginning":
            return self.table(ids[:, :2]).sum(1) + x
        if self.way == "offset":
            return self.table(ids + 1).sum(1) + x
        if self.way == "bag":
            return self.bag(ids) + x
        if self.way == "index_select":
            return rows.index_select(0, ids.flatten()).view(BATCH, 3, WIDTH).sum(1) + x
        if self.way == "gather":
            return rows.t().gather(1, ids.t().expand(3, BATCH)[:1].expand(WIDTH, BATCH)).t() + x
        if self.way == "one_hot":
            return torch.nn.functional.one_hot(ids, ROWS).to(x.dtype).sum(1) @ rows + x
        if self.way == "take":
            return rows[:, 0].take(ids).sum(1, keepdim=True) + x
        return rows[ids].sum(1) + x


class Port(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.table = tp.Embedding(ROWS, WIDTH, dtype=dtype)

    def forward(self, ids, x):
        return tp.sum(self.table(ids), dim=1) + x


def inputs(bad=None, place=(4, 1)):
    ids = np.random.default_rng(0).integers(0, ROWS - 1, (BATCH, 3))
    if bad is not None:
        ids[place] = bad
    return {"ids": ids, "x": np.ones((BATCH, WIDTH), np.float32)}


def refused(way, bad, place=(4, 1)):
    with pytest.raises(parity.UserError) as caught:
        parity.compare(Table(way), Port, inputs(bad, place), ("fp32",), **OPTIONS)
    return str(caught.value)


@pytest.mark.parametrize("way", ["embedding", "column", "beginning", "bag", "index_select", "one_hot"])
@pytest.mark.parametrize("bad", [ROWS, -1, 10**9])
def test_an_id_beyond_its_table_is_named_in_the_input(way, bad):
    told = refused(way, bad)
    assert told.startswith(f"inputs.ids[4, 1]: {bad} is outside of what the reference looks up: ")
    assert f"takes 0 to {ROWS - 1}" in told
    assert told.endswith(f"; give 0 to {ROWS - 1} in the case's inputs")


@pytest.mark.parametrize("way", ["index", "take"])
def test_an_index_may_count_from_the_end(way):
    assert f"[4, 1]: {-ROWS - 1} is outside" in refused(way, -ROWS - 1)
    assert f"takes {-ROWS} to {ROWS - 1}" in refused(way, ROWS)


def test_indices_that_are_no_input_have_the_operation_and_the_module():
    told = refused("offset", ROWS - 1)
    assert told.startswith(f"an index of embedding: {ROWS} is outside of what the reference looks up: ")
    assert f"embedding in table takes 0 to {ROWS - 1}, and its indices are computed" in told
    told = refused("gather", ROWS, (4, 0))
    assert told.startswith(f"an index of gather: {ROWS} is outside")
    assert f"gather in the code of the entry takes 0 to {ROWS - 1}" in told


def test_a_column_is_named_by_its_place():
    # The first column is never looked up.
    assert "inputs.ids[2, 1]: 9 is outside" in refused("column", ROWS, (2, 1))


def test_another_error_of_an_index_operation_stays_as_it_is():
    class Wrong(Table):
        def forward(self, ids, x):
            return self.table.weight.gather(0, ids.float().long()[None]) + x

    text = str(parity.compare(Wrong(""), Port, inputs(), ("fp32",), **OPTIONS))
    assert "ERROR in torch: RuntimeError: Index tensor must have the same number of dimensions" in text


def test_an_axis_that_is_not_there_is_the_models_own_error():
    class Wrong(Table):
        def forward(self, ids, x):
            return self.table.weight.index_select(5, ids[:, 0]) + x

    text = str(parity.compare(Wrong(""), Port, inputs(), ("fp32",), **OPTIONS))
    assert "ERROR in torch: IndexError: Dimension out of range" in text


def test_an_index_outside_is_found_before_its_operation_runs():
    # On a GPU, the operation would end the process's use of the device.
    ran = []

    class Recorded(LongestSums):
        def operation(self, func, args, kwargs):
            ran.append(func.overloadpacket.__name__)
            return super().operation(func, args, kwargs)

    with torch.inference_mode(), Recorded(), pytest.raises(IndexOutside, match="takes 0 to 8"):
        torch.nn.functional.embedding(torch.tensor([2, ROWS]), torch.ones(ROWS, WIDTH))
    assert "embedding" not in ran
