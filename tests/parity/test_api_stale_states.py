"""A port that returns a state as it received it: the cause says so, and breaks no result that is right."""

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity

D, ROWS, SLOTS = 8, 24, 6
RNG = np.random.default_rng(8)
INPUTS = {
    "x": RNG.standard_normal((ROWS, D)).astype(np.float32),
    "ids": RNG.integers(0, 5, (ROWS, SLOTS)),
    "slot": RNG.integers(0, SLOTS, ROWS),
    "keys": RNG.standard_normal((ROWS, SLOTS, D)).astype(np.float32),
    "values": RNG.standard_normal((ROWS, SLOTS, D)).astype(np.float32),
    "total": RNG.integers(0, 90, ROWS).astype(np.float32),
}


class Write(torch.nn.Module):
    def forward(self, cache, row, slot):
        here = torch.arange(SLOTS, device=row.device) == slot[:, None]
        return torch.where(here[..., None], row[:, None], cache)


class Cached(torch.nn.Module):
    """Writes a row into two caches by one module."""

    def __init__(self):
        super().__init__()
        self.key, self.value = torch.nn.Linear(D, D), torch.nn.Linear(D, D)
        self.write = Write()

    def forward(self, x, slot, keys, values):
        keys = self.write(keys, self.key(x), slot)
        values = self.write(values, self.value(x), slot)
        return (keys * x[:, None]).sum(-1), keys, values


class Counting(torch.nn.Module):
    """Scores, caches, and the number of items that are there."""

    def __init__(self):
        super().__init__()
        self.cached = Cached()

    def forward(self, x, ids, slot, keys, values, total):
        there = (ids != 0).to(x.dtype)
        scores, keys, values = self.cached(x, slot, keys, values)
        return {"scores": scores * there, "keys": keys, "values": values, "total": total + there.sum(-1)}


class WritePort(tp.Module):
    def forward(self, cache, row, slot):
        here = tp.unsqueeze(tp.iota((1, SLOTS), dim=1, dtype=slot.dtype) == tp.unsqueeze(slot, 1), 2)
        return tp.where(here, tp.unsqueeze(row, 1), cache)


class CachedPort(tp.Module):
    def __init__(self, dtype, stale):
        super().__init__()
        self.key, self.value = tp.Linear(D, D, dtype=dtype), tp.Linear(D, D, dtype=dtype)
        self.write = WritePort()
        self.stale = stale

    def forward(self, x, slot, keys, values):
        keys = self.write(keys, self.key(x), slot)
        written = self.write(values, self.value(x), slot)
        return tp.sum(keys * tp.unsqueeze(x, 1), -1), keys, values if self.stale == "values" else written


class CountingPort(tp.Module):
    def __init__(self, dtype, stale=""):
        super().__init__()
        self.cached = CachedPort(dtype, stale)
        self.stale = stale

    def forward(self, x, ids, slot, keys, values, total):
        there = tp.cast(ids != 0, x.dtype)
        scores, keys, values = self.cached(x, slot, keys, values)
        counted = total if self.stale == "total" else total + tp.sum(there, -1)
        return {"scores": scores * there, "keys": keys, "values": values, "total": counted}


@pytest.mark.parametrize(
    ("stale", "place", "cause"),
    [
        ("values", "cached[2]", "equals its argument values"),
        ("total", "forward.total", "equals the input total"),
    ],
)
def test_a_state_that_is_returned_as_it_came_is_named(stale, place, cause):
    text = str(parity.compare(Counting(), lambda dtype: CountingPort(dtype, stale), INPUTS, ("fp32",)))
    assert f"FAIL at {place}\n" in text, text
    assert f"cause: {cause}\n" in text, text
    # A change of a comparison would make the other results wrong.
    assert "nowhere" not in text
    assert "everywhere" not in text


def test_the_right_port_passes():
    assert parity.compare(Counting(), CountingPort, INPUTS).passed
