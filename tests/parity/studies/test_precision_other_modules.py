"""The search where modules are on one side alone, have other names, or weights in another layout."""

import nvtripy as tp
import pytest
import torch

import parity
from parity.inputs.arrays import make_inputs
from parity.inputs.weights import case_weights
from parity.studies.precision_search.bench import Bench
from parity.studies.precision_search.cost import Operation, Work
from parity.studies.precision_search.search import search


class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.deep = torch.nn.Sequential(
            torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(5, 3)
        )
        self.out = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.deep(x))


class Turned(tp.Module):
    """A linear layer whose weight lies the other way round."""

    def __init__(self, dtype):
        super().__init__()
        self.matrix, self.bias = tp.zeros((3, 2), dtype=dtype), tp.zeros((2,), dtype=dtype)

    def forward(self, x):
        return x @ self.matrix + self.bias


class Port(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.first, self.second = tp.Linear(6, 5, dtype=dtype), tp.Linear(5, 3, dtype=dtype)
        self.out = Turned(dtype)

    def forward(self, x):
        return self.out(self.second(tp.relu(self.first(x))))


@pytest.fixture(scope="module")
def bench():
    x = {"x": torch.randn(16, 6, generator=torch.Generator().manual_seed(0))}
    case = parity.ModelPair(
        Reference,
        Port,
        x,
        names={"first": "deep.0", "second": "deep.3"},
        weights={"out.matrix": parity.From("out.weight", transpose=True)},
    )
    return Bench(case, make_inputs(case).typical.arrays, case_weights(case)[0])


def test_modules_of_both_sides_have_precisions_of_their_own(bench):
    assert set(bench.paths) == {"", "deep.0", "deep.3", "out"}
    assert set(bench.kinds()) == set(bench.paths)
    base, lowered = bench.evaluate({}), bench.evaluate({"deep.3": "fp16"})
    assert 1e-5 < lowered.error < 1e-2
    assert base.error < 1e-6
    assert lowered.seconds != base.seconds


def test_the_search_finds_a_policy_in_the_references_paths(bench):
    found = search(bench, 1e-2, lambda text: None)
    assert found.best.error <= 1e-2
    assert {*found.best.precisions} == set(bench.paths)
    assert "fp16" in found.best.precisions.values()


def test_the_work_of_other_modules_is_that_of_the_module_around():
    one = Operation(floats=1, other_bytes=0, flops=0)
    work = Work(
        {"": [one], "a": [one], "a.b": [one], "a.b.c": [one, one], "d": []},
        {("a", ""): 1, ("a.b", "a"): 2, ("a.b.c", "a.b"): 4, ("d", ""): 8},
    )
    inner = work.within({"a", "a.b.c"})
    assert {path: len(own) for path, own in inner.operations.items()} == {"": 1, "a": 2, "a.b.c": 2}
    assert inner.crossings == {("a", ""): 1, ("a.b.c", "a"): 4}
