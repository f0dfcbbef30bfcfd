"""A module that the port makes by other code, such as a lookup in a weight, causes no other failure."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity

ROWS, D = 24, 6
INPUTS = {"ids": np.random.default_rng(3).integers(0, 9, ROWS).astype(np.int32)}


class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = torch.nn.Embedding(9, D), torch.nn.Linear(D, 4)

    def forward(self, ids):
        return {"scores": self.head(self.table(ids)), "next": ids + 1}


def port(step=1, shift=0):
    class Port(tp.Module):
        def __init__(self, dtype):
            super().__init__()
            self.table, self.head = tp.Embedding(9, D, dtype=dtype), tp.Linear(D, 4, dtype=dtype)

        def forward(self, ids):
            rows = tp.gather(self.table.weight, 0, ids if not shift else tp.maximum(ids - shift, 0))
            return {"scores": self.head(rows), "next": ids + step}

    return Port


def told(**faults):
    return str(parity.compare(Reference(), port(**faults), INPUTS, ("fp32",)))


def test_a_right_port_has_a_note():
    result = told()
    assert "fp32 PASS" in result
    assert "note: table (Embedding): the reference alone makes this call" in result


def test_another_failure_is_named_at_its_own_place():
    result = told(step=2)
    assert "fp32 FAIL at forward.next" in result
    assert "never calls" not in result


@pytest.mark.parametrize("step", [1, 2])
def test_the_module_is_named_where_the_port_makes_another_result(step):
    result = told(shift=1, step=step)
    assert "fp32 FAIL at table\n    where: table: missing: the port never calls table;" in result
