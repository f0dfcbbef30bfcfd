"""A wrong port whose choice no run of the reference can follow is a failure like any other."""

import nvtripy as tp
import pytest
import torch

import parity

BORDERS = torch.tensor([-1.0, 0.0, 1.0])
X = {"x": torch.randn(24, 3, generator=torch.Generator().manual_seed(0))}


class Bins(torch.nn.Module):
    """Places among borders, and their rows of a table."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(4, 5)
        self.register_buffer("borders", BORDERS.clone())

    def forward(self, x):
        place = torch.bucketize(x, self.borders)
        return place, self.table(place)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.bins = Bins()

    def forward(self, x):
        place, rows = self.bins(self.first(x))
        return {"place": place, "rows": rows.sum(1)}


class BinsPort(tp.Module):
    def __init__(self, dtype, add):
        super().__init__()
        self.table = tp.Embedding(4, 5, dtype=dtype)
        self.borders = tp.zeros((3,), dtype=dtype)
        self.add = add

    def forward(self, x):
        above = tp.cast(tp.unsqueeze(x, -1) > self.borders, tp.int32)
        place = tp.sum(above, dim=-1)
        told = tp.where(place == 3, place + self.add, place)
        return tp.cast(told, tp.int64), self.table(place)


class Port(tp.Module):
    def __init__(self, dtype, add=0):
        super().__init__()
        self.first = tp.Linear(3, 3, dtype=dtype)
        self.bins = BinsPort(dtype, add)

    def forward(self, x):
        place, rows = self.bins(self.first(x))
        return {"place": place, "rows": tp.sum(rows, dim=1)}


def model():
    torch.manual_seed(1)
    return Model()


@pytest.mark.parametrize("add", [1, 100, -100])
def test_an_index_that_no_table_has_is_a_failure_at_its_module(add):
    def port(dtype):
        return Port(dtype, add)

    result = parity.compare(model(), port, X, ("fp32", "fp16"), initial="own")
    assert not result.passed
    for precision in result.report.cases[0].precisions:
        (runner,) = (one for one in precision.runners if one.runner == "tripy")
        assert (runner.verdict, runner.diagnosis.tap) == ("FAIL", "bins[0]")


def test_the_right_port_passes():
    assert parity.compare(model(), Port, X, ("fp32", "fp16"), initial="own").passed
