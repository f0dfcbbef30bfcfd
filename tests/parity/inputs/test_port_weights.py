"""The port's tensors from the reference's: axes of 1."""

from __future__ import annotations

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity import From
from parity.base.errors import UserError
from parity.inputs.port_weights import port_weights

KERNEL = torch.arange(20.0).reshape(5, 4, 1, 1)
SQUARE = torch.arange(16.0).reshape(4, 4, 1)


class Owner(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.register_buffer("kernel", kernel)

    def forward(self, x):
        return x


def _taken(source, tensor, shape):
    case = parity.ModelPair(Owner(tensor), tp.Module, {"x": np.zeros((2, 3))}, weights={"weight": source})
    return port_weights(case, {"kernel": tensor}, {"weight": shape})["weight"]


@pytest.mark.parametrize(
    ("source", "tensor", "expected"),
    [
        ("kernel", KERNEL, KERNEL[:, :, 0, 0]),
        (From("kernel", transpose=True), KERNEL, KERNEL[:, :, 0, 0].T),
        (From("kernel", transpose=True), SQUARE, SQUARE[:, :, 0].T),
        ("kernel", KERNEL[:, :, 0, 0], KERNEL),
        ("kernel", torch.tensor(3.0), torch.tensor([3.0])),
    ],
    ids=["kernel", "transposed", "square", "to a kernel", "a number"],
)
def test_axes_of_1_may_differ(source, tensor, expected):
    taken = _taken(source, tensor, tuple(expected.shape))
    assert taken.shape == expected.shape
    assert torch.equal(taken, expected)


def test_other_axes_may_not_differ():
    with pytest.raises(UserError, match=r"is not the port's shape \(4, 5\); write .*transpose"):
        _taken("kernel", KERNEL, (4, 5))
    with pytest.raises(UserError, match=r"is not the port's shape \(20,\)"):
        _taken("kernel", KERNEL, (20,))
