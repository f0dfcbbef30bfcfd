"""Padding that one module inside a failing one hands to another is told at the code that makes it."""

import functools
import inspect

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity

WIDTH, LENGTH, USERS, MOST = 6, 5, 7, 4
LENGTHS = np.array([5, 3, 1, 4, 2, 5, 3])
VALID = np.arange(LENGTH) < LENGTHS[:, None]
RNG = np.random.default_rng(1)
BATCH = {
    "x": np.where(VALID[..., None], RNG.standard_normal((USERS, LENGTH, WIDTH)), 0.0).astype(np.float32),
    # Times of items are below 4, those of the padding are 9: it alone reaches the last row of the table.
    "times": np.where(VALID, RNG.integers(0, 4, (USERS, LENGTH)), 9),
    "valid": VALID,
}


class Bias(torch.nn.Module):
    """A bias for each column, by its time; all columns count."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(MOST + 1))

    def forward(self, times):
        return self.table[times.clamp(max=MOST)].unsqueeze(1).expand(-1, times.shape[1], -1)


class Attention(torch.nn.Module):
    """Softmax over all columns, the padding included."""

    def forward(self, x, bias):
        return torch.softmax(x @ x.mT + bias, -1) @ x


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias, self.attention = Bias(), Attention()

    def forward(self, x, times):
        return self.attention(x * 0.5, self.bias(times)) + x


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x, times, valid):
        return torch.where(valid.unsqueeze(-1), self.block(x, times), 0.0)


class BiasPort(tp.Module):
    def __init__(self, dtype, most):
        super().__init__()
        self.table = tp.zeros((MOST + 1,), dtype=dtype)
        self._most = most

    def forward(self, times):
        rows = tp.gather(self.table, 0, tp.cast(tp.minimum(times, self._most), tp.int32))
        return tp.expand(tp.unsqueeze(rows, 1), (-1, times.shape[1], -1))


class AttentionPort(tp.Module):
    def forward(self, x, bias):
        return tp.softmax(x @ tp.transpose(x, 1, 2) + bias, dim=-1) @ x


class BlockPort(tp.Module):
    def __init__(self, dtype, most, latest, residual):
        super().__init__()
        self.bias, self.attention = BiasPort(dtype, most), AttentionPort()
        self._latest, self._residual = latest, residual

    def forward(self, x, times):
        bias = self.bias(tp.minimum(times, self._latest))
        return self.attention(x * 0.5, bias) + x * self._residual


class Port(tp.Module):
    def __init__(self, dtype, most=MOST, latest=9, residual=1.0):
        super().__init__()
        self.block = BlockPort(dtype, most, latest, residual)

    def forward(self, x, times, valid):
        return tp.where(tp.unsqueeze(valid, -1), self.block(x, times), 0.0)


def compared(**changes):
    port = functools.partial(Port, **changes)
    return parity.compare(Model(), port, BATCH, ("fp32", "bf16"), mask="valid")


def diagnoses(**changes):
    precisions = compared(**changes).report.cases[0].precisions
    return [own.runners[1].diagnosis for own in precisions]


def test_the_right_port_passes():
    compared().raise_if_failed()


def test_a_module_whose_padding_another_one_reads_is_named():
    for diagnosis in diagnoses(most=MOST - 1):
        assert (diagnosis.kind, diagnosis.tap) == ("module", "block.bias")
        told = "block.bias (Bias) makes another result in its padding: block.attention receives another bias"
        assert diagnosis.text.startswith(told)
        assert "block.attention passes on its own, and no other difference reaches it" in diagnosis.text
        line = inspect.getsourcelines(BiasPort.forward)[1]
        assert diagnosis.source.endswith(f"test_api_padding_inside.py:{line}")


def test_the_code_that_makes_the_padding_is_named():
    """The module that hands it on is right: it receives another padding."""
    for diagnosis in diagnoses(latest=3):
        assert (diagnosis.kind, diagnosis.tap, diagnosis.argument) == ("module", "block", "block.bias(times)")
        assert "inside, block.bias receives another times in its padding" in diagnosis.text
        assert diagnosis.text.endswith("the code of block makes the argument")


@pytest.mark.parametrize("latest", [9, 12])
def test_a_module_s_own_mistake_stays_at_it(latest):
    for diagnosis in diagnoses(latest=latest, residual=1.5):
        assert (diagnosis.kind, diagnosis.tap, diagnosis.argument) == ("module", "block", "")
