"""Live models whose port merges the axes of tokens before a layer and splits them behind it."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from tests.parity.live_models import modules

IDS = {"ids": np.random.default_rng(0).integers(0, 29, (10, 7)).astype(np.int64)}


class Tokens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(30, 8)
        self.layer = torch.nn.Linear(8, 6)

    def forward(self, ids):
        return torch.tanh(self.layer(self.table(ids)))


class Flattened(tp.Module):
    """Merges batch and tokens; looks other rows up, merges them in another order, or cuts features off."""

    def __init__(self, dtype, fault=""):
        super().__init__()
        self.fault = fault
        self.table = tp.Embedding(30, 8, dtype=dtype)
        self.layer = tp.Linear(8, 6, dtype=dtype)

    def forward(self, ids):
        x = self.table(ids + 1 if self.fault in ("ids", "both") else ids)
        if self.fault == "order":
            x = tp.transpose(x, 0, 1)
        if self.fault == "both":
            x = x[:, :6]
        result = tp.tanh(self.layer(tp.reshape(x, (-1, 8))))
        return result if self.fault in ("output", "both") else tp.reshape(result, (10, 7, 6))


def tokens(fault=""):
    return parity.compare(Tokens(), lambda dtype: Flattened(dtype, fault), IDS, ("fp32",))


def test_merged_axes_are_compared_in_the_reference_s_shape():
    result = tokens()
    assert result.passed, result
    layer = modules(result)["layer"]
    assert (layer.status, layer.accumulated.checked) == ("PASS", 420)
    assert "the port merges or splits axes; compared as (10, 7, 6)" in layer.notes


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("ids", "FAIL at table"),
        ("order", "layer receives another input"),
        # An output of the model keeps its axes.
        ("output", "shape (70, 6) differs from the reference's (10, 7, 6)"),
        # A shape that truly differs hides no earlier fault.
        ("both", "FAIL at table"),
    ],
)
def test_merged_axes_hide_no_fault(fault, text):
    assert text in str(tokens(fault))
