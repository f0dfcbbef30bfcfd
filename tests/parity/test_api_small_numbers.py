"""Large numbers of an argument carry its norm: wrong small ones are named where their error shows."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity

ROWS, LENGTH = 12, 7
RNG = np.random.default_rng(4)
NOW = 1_764_000_000 + RNG.integers(0, 10**7, ROWS)
TIMES = NOW[:, None] - np.cumsum(RNG.integers(60, 3000, (ROWS, LENGTH)), 1)
TIMES[:, -2:] = 0
INPUTS = {"times": TIMES, "now": NOW}


class Decay(torch.nn.Module):
    def forward(self, hours):
        return torch.exp(-hours).sum(-1)


class Reference(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.decay = Decay()

    def forward(self, times, now):
        return self.decay((now[:, None] - times).float() / 3600.0)


class DecayPort(tp.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, hours):
        return tp.sum(tp.exp(-hours * self.scale), dim=-1)


def port(early, scale=1.0):
    class Port(tp.Module):
        def __init__(self, dtype):
            super().__init__()
            self.decay = DecayPort(scale)

        def forward(self, times, now):
            if early:
                times, now = tp.cast(times, tp.float32), tp.cast(now, tp.float32)
            return self.decay(tp.cast(tp.unsqueeze(now, 1) - times, tp.float32) / 3600.0)

    return Port


def told(*faults):
    return str(parity.compare(Reference(), port(*faults), INPUTS, ("fp32",)))


def test_small_numbers_of_an_argument_are_named_beside_large_ones():
    text = told(True)
    assert "fp32 FAIL at decay" in text
    assert "decay receives another hours in its small numbers: " in text
    assert "; every module passes on its own; the code of forward makes the argument" in text


@pytest.mark.parametrize(
    ("faults", "words"), [((False,), "fp32 PASS"), ((False, 1.01), "diverges on its own")]
)
def test_right_numbers_and_wrong_modules_are_told_as_before(faults, words):
    text = told(*faults)
    assert words in text
    assert "small numbers" not in text
