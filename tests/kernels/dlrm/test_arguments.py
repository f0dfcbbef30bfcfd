"""Types that no kernel has, and gradients, are refused by name."""

from __future__ import annotations

import pytest
import torch

from kernels.dlrm import (
    Bags,
    KernelError,
    TableGroup,
    add_bias_relu,
    dot_interaction,
    embedding_bags,
    linear_activation,
    two_layer_mlp,
)

BAGS = Bags(torch.tensor([0, 1]), torch.tensor([0, 1, 2]))


def grown(*shape: int) -> torch.Tensor:
    return torch.ones(shape, requires_grad=True)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_result_has_a_floating_type(backend):
    group = TableGroup([torch.ones(3, 4)])
    with pytest.raises(KernelError, match=r"dtype=torch.int32: give one of|runs on CUDA tensors"):
        embedding_bags(group, BAGS, dtype=torch.int32, backend=backend)


@pytest.mark.parametrize(
    ("group", "bags", "message"),
    [
        (None, BAGS, "group=None: give a TableGroup"),
        ([torch.ones(3, 4)], BAGS, r"group=\[tensor.*: give a TableGroup"),
        (TableGroup([torch.ones(3, 4)]), torch.tensor([0, 1]), r"bags=tensor.*: give a Bags"),
    ],
)
def test_other_arguments_in_place_of_tables_and_bags(group, bags, message):
    with pytest.raises(KernelError, match=f"(?s){message}"):
        embedding_bags(group, bags, backend="torch")


def test_tables_of_integers_are_refused():
    with pytest.raises(KernelError, match=r"tables\[0\].dtype=torch.int32: give a floating-point type"):
        embedding_bags(TableGroup([torch.ones(3, 4, dtype=torch.int32)]), BAGS, backend="torch")


def test_factors_of_integers_are_refused():
    x = torch.ones(3, 4, dtype=torch.int32)
    with pytest.raises(KernelError, match="x_BC has dtype torch.int32: backend='triton' takes"):
        linear_activation(x, x[:2], x[0, :2])


@pytest.mark.parametrize(
    "run",
    [
        lambda: linear_activation(torch.ones(3, 4), grown(2, 4), torch.ones(2)),
        lambda: two_layer_mlp(grown(3, 4), torch.ones(2, 4), torch.ones(2), torch.ones(1, 2), torch.ones(1)),
        lambda: dot_interaction(grown(3, 2, 4)),
        lambda: add_bias_relu(grown(3, 4), torch.ones(4)),
        lambda: TableGroup([grown(3, 4)]),
    ],
)
def test_gradients_are_refused(run):
    with pytest.raises(KernelError, match="no backward"):
        run()


def test_a_result_without_gradients_is_given_for_parameters_under_no_grad():
    with torch.no_grad():
        group = TableGroup([grown(3, 4)])
    assert embedding_bags(group, BAGS, backend="torch").shape == (2, 1, 4)
