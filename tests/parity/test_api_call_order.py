"""Live models whose port calls a shared module in another order."""

import nvtripy as tp
import pytest
import torch

import parity
from tests.parity.live_models import modules

USERS, ITEMS = (torch.randn(32, 6, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
INPUTS = {"users": USERS, "items": ITEMS}


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 9)
        self.second = torch.nn.Linear(9, 4)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


class Siamese(torch.nn.Module):
    """One encoder for users and items, whose results are no relatives of each other."""

    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.head = torch.nn.Linear(4, 1)

    def forward(self, users, items):
        u = self.encoder(2 * users)
        i = self.encoder(items - 1)
        return self.head(torch.relu(u) - i)


class EncoderPort(tp.Module):
    def __init__(self, dtype, is_wrong):
        super().__init__()
        self.first = tp.Linear(6, 9, dtype=dtype)
        self.second = tp.Linear(9, 4, dtype=dtype)
        self.is_wrong = is_wrong

    def forward(self, x):
        y = self.first(x)
        return self.second(tp.sigmoid(y) if self.is_wrong else tp.tanh(y))


class SiamesePort(tp.Module):
    def __init__(self, dtype, bug=""):
        super().__init__()
        self.encoder = EncoderPort(dtype, bug == "encoder")
        self.head = tp.Linear(4, 1, dtype=dtype)
        self.bug = bug

    def forward(self, users, items):
        i = self.encoder(items - 1.0)
        u = self.encoder(users * (3.0 if self.bug == "argument" else 2.0))
        if self.bug == "exchanged":
            u, i = i, u
        return self.head(tp.relu(u) - i)


def compared(bug=""):
    return parity.compare(Siamese(), lambda dtype: SiamesePort(dtype, bug), INPUTS, ("fp32",))


def test_a_right_port_passes_with_a_note_at_each_moved_call():
    result = compared()
    assert result.passed, result
    noted = {tap for tap, module in modules(result).items() if "another order" in str(module.notes)}
    parts = ("", ".first", ".second")
    assert noted == {f"encoder{part}{call}" for part in parts for call in ("", "@1")}


@pytest.mark.parametrize(
    ("bug", "place", "told"),
    [
        ("encoder", "encoder", "fits the reference with sigmoid in place of tanh"),
        ("exchanged", "head", "head receives another input"),
        ("argument", "encoder", "receives another x"),
    ],
)
def test_a_wrong_port_is_named(bug, place, told):
    result = compared(bug)
    assert not result.passed
    assert f"FAIL at {place}" in str(result)
    assert told in str(result)


class Alone(torch.nn.Module):
    """No module: the entry makes all outputs."""

    def forward(self, users, items):
        return torch.log1p(users.abs()), items.clamp(-0.5, 0.5).cumsum(1)


class AlonePort(tp.Module):
    def __init__(self, dtype, bug=""):
        super().__init__()
        self.bug = bug

    def forward(self, users, items):
        x = tp.maximum(users, 0.0 - users)
        y = items if self.bug == "clamp" else tp.minimum(tp.maximum(items, -0.5), 0.5)
        return tp.log(x + (0.0 if self.bug == "log" else 1.0)), tp.cumsum(y, dim=1)


@pytest.mark.parametrize(
    ("bug", "output", "cause"),
    [("log", "forward.0", "with log in place of log1p"), ("clamp", "forward.1", "without clamp")],
)
def test_a_model_without_modules_has_a_cause(bug, output, cause):
    assert parity.compare(Alone(), AlonePort, INPUTS, ("fp32",)).passed
    result = parity.compare(Alone(), lambda dtype: AlonePort(dtype, bug), INPUTS, ("fp32",))
    assert f"FAIL at {output}" in str(result)
    assert "the code of forward makes the output" in str(result)
    assert "every module is right" not in str(result)
    assert cause in str(result)
