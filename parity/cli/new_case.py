"""A PyTorch model, its Tripy port, and their case.

parity run --model new_case:case
"""

import numpy as np
import nvtripy as tp
import torch

import parity

ROWS, WIDTH, HIDDEN = 11, 6, 10


class Reference(torch.nn.Module):
    """The truth."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(ROWS, WIDTH)
        self.first = torch.nn.Linear(WIDTH, HIDDEN)
        self.second = torch.nn.Linear(HIDDEN, 1)

    def forward(self, ids_B):
        return self.second(torch.relu(self.first(self.table(ids_B))))


class Port(tp.Module):
    """The same modules under the same names."""

    def __init__(self, dtype):
        super().__init__()
        self.table = tp.Embedding(ROWS, WIDTH, dtype=dtype)
        self.first = tp.Linear(WIDTH, HIDDEN, dtype=dtype)
        self.second = tp.Linear(HIDDEN, 1, dtype=dtype)

    def forward(self, ids_B):
        return self.second(tp.relu(self.first(self.table(ids_B))))


class NewCase(parity.Case):
    """Both sides, and inputs for them."""

    name = "new_case"
    batch_size = 40

    def build_reference(self):
        """The PyTorch model, with any weights: the suite makes its own, and gives them to both sides."""
        return Reference()

    def build_port(self, dtype):
        """The Tripy model in one precision."""
        return Port(dtype)

    def make_inputs(self):
        """Arguments of both models' `forward`, by name."""
        rng = np.random.default_rng(self.seed)
        return {"ids_B": rng.integers(0, ROWS, self.batch_size)}


case = NewCase()
