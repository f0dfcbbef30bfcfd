"""Causes in a module of PyTorch that a loop calls: each call has another state, the first one none."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity

D, STEPS, ROWS = 6, 4, 8
INPUTS = {"x": np.random.default_rng(17).standard_normal((ROWS, STEPS, D)).astype(np.float32)}
WEIGHTS = {
    f"cell.{gate}.{part}": f"cell.{part}_{gate}" for part in ("weight", "bias") for gate in ("ih", "hh")
}


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRUCell(D, D)

    def forward(self, x):
        state = torch.zeros_like(x[:, 0])
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state


class Cell(tp.Module):
    def __init__(self, dtype, bug):
        super().__init__()
        self.ih = tp.Linear(D, 3 * D, dtype=dtype)
        self.hh = tp.Linear(D, 3 * D, dtype=dtype)
        self.bug = bug

    def forward(self, x, h):
        ri, zi, ni = tp.split(self.ih(x), 3, dim=-1)
        rh, zh, nh = tp.split(self.hh(h), 3, dim=-1)
        r, z = tp.sigmoid(ri + rh), tp.sigmoid(zi + zh)
        if self.bug == "reset before the product":
            nh = tp.split(self.hh(r * h), 3, dim=-1)[2]
        elif self.bug != "no reset":
            nh = r * nh
        n = tp.tanh(ni + nh)
        return h + z * (n - h) if self.bug == "complement" else n + z * (h - n)


class RecurrentPort(tp.Module):
    def __init__(self, dtype, bug=""):
        super().__init__()
        self.cell = Cell(dtype, bug)

    def forward(self, x):
        state = tp.zeros((ROWS, D), dtype=x.dtype)
        for step in tp.split(x, STEPS, dim=1):
            state = self.cell(tp.squeeze(step, 1), state)
        return state


def judged(bug):
    return parity.compare(
        Recurrent(), lambda dtype: RecurrentPort(dtype, bug), INPUTS, ("fp32",), weights=WEIGHTS
    )


def test_a_right_cell_passes():
    assert judged("").passed


@pytest.mark.parametrize(
    ("bug", "cause"),
    [
        ("no reset", f"without the second factor of shape {ROWS}x{D}, the 1st of 2 times in the module"),
        ("complement", "with 1 - x in place of the gate x of sigmoid, the 2nd of 2 times in the module"),
    ],
)
def test_a_cause_of_all_calls_is_told(bug, cause):
    """The module is PyTorch's: it has no line of the user's."""
    text = str(judged(bug))
    assert "FAIL at cell" in text
    assert f"cause: fits the reference {cause}" in text


def test_a_cause_of_the_first_call_alone_is_none():
    """Without a state, the gate has no effect on the product: the first call lacks its factor."""
    text = str(judged("reset before the product"))
    assert "FAIL at cell" in text
    assert "fits the reference" not in text
