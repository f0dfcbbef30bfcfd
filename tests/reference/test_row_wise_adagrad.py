"""Row-wise Adagrad beside its rule and beside PyTorch's Adagrad."""

from __future__ import annotations

import copy

import pytest
import torch

from reference.row_wise_adagrad import RowWiseAdagrad

RATE, EPSILON = 0.25, 1e-8


def table(columns: int, dtype: torch.dtype = torch.float64) -> torch.nn.Embedding:
    torch.manual_seed(3)
    return torch.nn.Embedding(7, columns, sparse=True, dtype=dtype)


def steps(embedding: torch.nn.Embedding, optimizer: torch.optim.Optimizer) -> None:
    for ids in ([1, 4, 4, 6], [4, 0], [1, 1, 1]):
        optimizer.zero_grad()
        weights = torch.linspace(0.5, 2.0, len(ids) * embedding.embedding_dim, dtype=embedding.weight.dtype)
        (embedding(torch.tensor(ids)).flatten() * weights).sum().backward()
        optimizer.step()


def test_one_column_is_pytorch_s_adagrad():
    own, peer = table(1), table(1)
    steps(own, RowWiseAdagrad(own.parameters(), RATE, EPSILON))
    steps(peer, torch.optim.Adagrad(peer.parameters(), RATE, eps=EPSILON))
    assert torch.allclose(own.weight, peer.weight, rtol=1e-14, atol=0)


def test_a_row_has_one_sum_of_mean_squares():
    embedding = table(3)
    before = embedding.weight.detach().clone()
    optimizer = RowWiseAdagrad(embedding.parameters(), RATE, EPSILON)
    embedding(torch.tensor([2])).mul(torch.tensor([[3.0, 0.0, 4.0]])).sum().backward()
    optimizer.step()
    root = (25 / 3) ** 0.5
    moved = before[2] - RATE * torch.tensor([3.0, 0.0, 4.0]) / root
    assert torch.allclose(embedding.weight[2], moved, rtol=1e-6)
    (state,) = optimizer.state.values()
    assert state["row_sums"].tolist() == pytest.approx([0, 0, 25 / 3, 0, 0, 0, 0])


def test_rows_without_an_id_stay_and_so_do_tables_without_a_gradient():
    embedding, other = table(3, torch.float32), table(2, torch.float32)
    before = [each.weight.detach().clone() for each in (embedding, other)]
    steps(embedding, RowWiseAdagrad([embedding.weight, other.weight], RATE, EPSILON))
    assert torch.equal(embedding.weight[[2, 3, 5]], before[0][[2, 3, 5]])
    assert not torch.isclose(embedding.weight, before[0]).all(dim=1)[[0, 1, 4, 6]].any()
    assert torch.equal(other.weight, before[1])


def test_a_saved_state_goes_on():
    one, two = table(3), table(3)
    first = RowWiseAdagrad(one.parameters(), RATE, EPSILON)
    steps(one, first)
    two.load_state_dict(one.state_dict())
    second = RowWiseAdagrad(two.parameters(), RATE, EPSILON)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    steps(one, first)
    steps(two, second)
    assert torch.equal(one.weight, two.weight)


def test_a_closure_is_refused():
    optimizer = RowWiseAdagrad(table(3).parameters(), RATE, EPSILON)
    with pytest.raises(TypeError, match="closure: row-wise Adagrad does not evaluate a loss; call step"):
        optimizer.step(lambda: None)
