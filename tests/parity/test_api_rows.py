"""Models whose rows depend on each other by design, with dynamic sizes: a loss of the batch, a graph."""

import nvtripy as tp
import pytest
import torch

import parity

SIZE, WIDTH = 5, 7


class Contrast(torch.nn.Module):
    """The similarities of all pairs (B, B), and the loss of the pairs on the diagonal, a scalar."""

    def __init__(self):
        super().__init__()
        self.left = torch.nn.Linear(SIZE, WIDTH)
        self.right = torch.nn.Linear(SIZE, WIDTH)

    def forward(self, x, y):
        scores = self.left(x) @ self.right(y).t()
        return scores, (scores.logsumexp(1) - scores.diagonal()).mean()


class ContrastPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.left = tp.Linear(SIZE, WIDTH, dtype=dtype)
        self.right = tp.Linear(SIZE, WIDTH, dtype=dtype)

    def forward(self, x, y):
        left, right = self.left(x), self.right(y)
        scores = left @ tp.transpose(right, 0, 1)
        top = tp.max(scores, dim=1, keepdim=True)
        largest = tp.squeeze(top, 1) - tp.sum(left * right, dim=1)
        return scores, tp.mean(tp.log(tp.sum(tp.exp(scores - top), dim=1)) + largest)


class Graph(torch.nn.Module):
    """The sums of neighbours' features, and the features' largest numbers."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(SIZE, WIDTH)

    def forward(self, nodes, edges):
        x = edges @ self.first(nodes)
        return x, x.max(0).values


class GraphPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.first = tp.Linear(SIZE, WIDTH, dtype=dtype)

    def forward(self, nodes, edges):
        x = edges @ self.first(nodes)
        return x, tp.max(x, dim=0)


class SharingPort(ContrastPort):
    """A port whose first layer takes the first row into every other one; the size of the batch hides it."""

    def forward(self, x, y):
        return super().forward(x + 0.001 * x[:1], y)


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def test_rows_that_depend_on_their_batch_in_both_models_pass():
    inputs = {"x": drawn(9, SIZE), "y": drawn(9, SIZE)}
    dynamic = {name: {0: 1} for name in inputs}
    parity.compare(Contrast(), ContrastPort, inputs, ("fp32", "fp16"), dynamic=dynamic).raise_if_failed()
    assert not parity.compare(Contrast(), SharingPort, inputs, ("fp32",), dynamic=dynamic).passed


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_square_array_of_dynamic_sizes_relates_its_rows(precision):
    inputs = {"nodes": drawn(8, SIZE), "edges": (drawn(8, 8) > 0.5).float()}
    dynamic = {"nodes": {0: 1}, "edges": {0: 1, 1: 1}}
    parity.compare(Graph(), GraphPort, inputs, (precision,), dynamic=dynamic).raise_if_failed()


def test_a_case_that_states_independent_rows_fails_where_they_are_not():
    inputs = {"x": drawn(9, SIZE), "y": drawn(9, SIZE)}
    pair = parity.ModelPair(Contrast(), ContrastPort, inputs, dynamic={name: {0: 1} for name in inputs})
    pair.states_rows = True
    result = parity.check(pair, precisions=("fp32",))
    assert not result.passed
    assert "row 0 alone differs from itself in the batch by" in str(result)
