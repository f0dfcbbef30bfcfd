"""Garbage in the padding is told at the code that keeps it, not at the module that reads it by design."""

import functools
import inspect

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity

WIDTH, LENGTH = 6, 5
LENGTHS = np.array([5, 3, 1, 4])
BATCH = {
    "x": np.random.default_rng(1).standard_normal((len(LENGTHS), LENGTH, WIDTH)).astype(np.float32),
    "valid": np.arange(LENGTH) < LENGTHS[:, None],
}
# The clean padding is 0, so that only garbage in it tells a port that clears it from one that does not.
CLEAN = BATCH | {"x": np.where(BATCH["valid"][..., None], BATCH["x"], 0.0).astype(np.float32)}


class Total(torch.nn.Module):
    """Adds the sum over all positions, the padding included."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.layer(x) + x.sum(1, keepdim=True)


class Clear(torch.nn.Module):
    def forward(self, x, valid):
        return torch.where(valid.unsqueeze(-1), x, 0.0)


class Model(torch.nn.Module):
    """Clears the padding by itself, or by a module."""

    def __init__(self, by_module):
        super().__init__()
        self.total = Total()
        self.clear = Clear() if by_module else None

    def forward(self, x, valid):
        cleared = torch.where(valid.unsqueeze(-1), x, 0.0) if self.clear is None else self.clear(x, valid)
        return self.total(cleared)


class TotalPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.layer = tp.Linear(WIDTH, WIDTH, dtype=dtype)

    def forward(self, x):
        return self.layer(x) + tp.sum(x, dim=1, keepdim=True)


class ClearPort(tp.Module):
    def __init__(self, clears):
        super().__init__()
        self._clears = clears

    def forward(self, x, valid):
        return tp.where(tp.unsqueeze(valid, -1), x, 0.0) if self._clears else x * 1.0


class Port(tp.Module):
    def __init__(self, dtype, by_module, clears):
        super().__init__()
        self.total = TotalPort(dtype)
        self.clear = ClearPort(clears) if by_module else None
        self._clears = clears

    def forward(self, x, valid):
        if self.clear is not None:
            x = self.clear(x, valid)
        elif self._clears:
            x = tp.where(tp.unsqueeze(valid, -1), x, 0.0)
        return self.total(x)


def _compared(by_module, clears):
    return parity.compare(
        Model(by_module),
        lambda dtype: Port(dtype, by_module, clears),
        CLEAN,
        ("fp32",),
        mask="valid",
        poison=("x",),
    )


@pytest.mark.parametrize("by_module", [False, True])
def test_a_port_that_clears_the_padding_passes(by_module):
    _compared(by_module, clears=True).raise_if_failed()


def test_the_caller_that_keeps_garbage_is_named_with_its_line():
    result = _compared(False, clears=False)
    told = str(result)
    assert "garbage in padded positions reaches x of total, where the reference has none" in told
    assert "changes valid bits at total; the code of forward makes the argument" in told
    source = result.report.cases[0].precisions[0].runners[1].diagnosis.source
    lines, first = inspect.getsourcelines(Port.forward)
    assert source.endswith(f"test_api_kept_padding.py:{first + len(lines) - 1}")


def test_the_module_that_keeps_garbage_is_named():
    told = str(_compared(True, clears=False))
    assert "reaches x of total, where the reference has none" in told
    assert "changes valid bits at total; it is the result of clear" in told
    assert "FAIL at clear" in told


class Masked(torch.nn.Module):
    """Leaves garbage in its padding, where it came from, and reads none of it."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, valid):
        return self.layer(x) + torch.where(valid.unsqueeze(-1), x, 0.0).sum(1, keepdim=True)


class Around(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.masked = Masked()

    def forward(self, x, valid):
        return self.masked(x, valid)


class MaskedPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.layer = tp.Linear(WIDTH, WIDTH, dtype=dtype)

    def forward(self, x, valid):
        return self.layer(x) + tp.sum(x, dim=1, keepdim=True)


class AroundPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.masked = MaskedPort(dtype)

    def forward(self, x, valid):
        return self.masked(x, valid)


def test_a_module_that_reads_padding_which_both_sides_keep_is_named_itself():
    result = parity.compare(Around(), AroundPort, CLEAN, ("fp32",), mask="valid", poison=("x",))
    told = str(result)
    assert "padding leaks: garbage in padded positions changes valid bits at masked" in told
    assert "FAIL at masked" in told


class Smooth(torch.nn.Module):
    """Reads its neighbours, the padding included."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class Smoothed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self.smooth = Smooth()

    def forward(self, x, valid):
        return self.smooth(torch.where(valid.unsqueeze(-1), self.layer(x), 0.0))


class ConvPort(tp.Module):
    """The convolution on data with channels last, which does not run on the reference's argument."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = tp.ones((WIDTH, WIDTH, 3), dtype=dtype)
        self.bias = tp.ones((WIDTH,), dtype=dtype)

    def forward(self, rows):
        zero = tp.zeros_like(rows[:, :1])
        shifted = tp.concatenate([zero, rows, zero], dim=1)
        parts = [
            shifted[:, k : k + LENGTH] @ tp.transpose(tp.squeeze(self.weight[:, :, k : k + 1], 2), 0, 1)
            for k in range(3)
        ]
        return parts[0] + parts[1] + parts[2] + self.bias


class SmoothPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.conv = ConvPort(dtype)

    def forward(self, x):
        return self.conv(x)


class SmoothedPort(tp.Module):
    def __init__(self, dtype, clears):
        super().__init__()
        self.layer = tp.Linear(WIDTH, WIDTH, dtype=dtype)
        self.smooth = SmoothPort(dtype)
        self._clears = clears

    def forward(self, x, valid):
        x = self.layer(x)
        if self._clears:
            x = tp.where(tp.unsqueeze(valid, -1), x, 0.0)
        return self.smooth(x)


@pytest.mark.parametrize("clears", [True, False])
def test_padding_is_asked_where_an_inner_module_cannot_run_alone(clears):
    build = functools.partial(SmoothedPort, clears=clears)
    result = parity.compare(Smoothed(), build, BATCH, ("fp32",), mask="valid", poison=("x",))
    assert result.passed is clears, result
    if not clears:
        told = str(result)
        assert "FAIL at smooth" in told
        assert "smooth receives another x in its padding" in told
        assert "smooth passes on its own, and no other difference reaches smooth; the code of forward" in told


class Suffix(torch.nn.Module):
    """Sums the positions behind each one by a function, the padding included, in front of a layer."""

    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.out(x.flip(1).cumsum(1).flip(1))


class Behind(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self.read = Suffix()

    def forward(self, x, valid):
        return self.read(torch.where(valid.unsqueeze(-1), self.layer(x), 0.0))


class SuffixPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.out = tp.Linear(WIDTH, WIDTH, dtype=dtype)

    def forward(self, x):
        sums = [tp.sum(x[:, position:], dim=1, keepdim=True) for position in range(LENGTH)]
        return self.out(tp.concatenate(sums, dim=1))


class BehindPort(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.layer = tp.Linear(WIDTH, WIDTH, dtype=dtype)
        self.read = SuffixPort(dtype)

    def forward(self, x, valid):
        return self.read(self.layer(x))


def test_code_of_a_module_that_passes_alone_is_not_blamed():
    result = parity.compare(Behind(), BehindPort, BATCH, ("fp32",), mask="valid", poison=("x",))
    told = str(result)
    assert "FAIL at read\n" in told
    assert "read receives another x in its padding" in told
    assert "read passes on its own, and no other difference reaches read; the code of forward makes" in told
