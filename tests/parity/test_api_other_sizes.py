"""A right module that the port calls with other sizes, such as an expert on all rows, is judged alone."""

import nvtripy as tp
import pytest
import torch

import parity

ROWS, D = 24, 6
INPUTS = {"x": torch.randn(ROWS, 8, D, generator=torch.Generator().manual_seed(4))}


class Expert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(D, D)

    def forward(self, x):
        return torch.tanh(self.inner(x))


class Reference(torch.nn.Module):
    """The expert sees the first rows of each example alone."""

    def __init__(self):
        super().__init__()
        self.expert, self.head = Expert(), torch.nn.Linear(D, 5)

    def forward(self, x):
        return {"scores": self.head(self.expert(x[:, :5]).sum(1)), "mean": x.mean((1, 2))}


class ExpertPort(tp.Module):
    def __init__(self, dtype, activation):
        super().__init__()
        self.inner = tp.Linear(D, D, dtype=dtype)
        self.activation = activation

    def forward(self, x):
        return self.activation(self.inner(x))


def port(kept=5, activation=tp.tanh, scale=1.0):
    class Port(tp.Module):
        def __init__(self, dtype):
            super().__init__()
            self.expert, self.head = ExpertPort(dtype, activation), tp.Linear(D, 5, dtype=dtype)

        def forward(self, x):
            every = self.expert(x)
            scores = self.head(tp.sum(every[:, :kept], dim=1))
            return {"scores": scores, "mean": tp.mean(x, dim=(1, 2)) * scale}

    return Port


def compared(**faults):
    return parity.compare(Reference(), port(**faults), INPUTS, ("fp32", "fp16"))


def test_a_right_port_passes_with_a_note(tmp_path):
    result = compared()
    assert "FAIL" not in str(result)
    result.write(tmp_path)
    note = "judged alone: the port's call has other sizes, x: shape (24, 8, 6) in place of (24, 5, 6);"
    assert note in (tmp_path / "report.json").read_text()


def test_a_right_port_passes_at_all_sizes():
    result = parity.compare(Reference(), port(), INPUTS, ("fp32",), dynamic={"x": {0: 1}})
    assert result.passed, result


@pytest.mark.parametrize(
    ("faults", "place"),
    [
        ({"activation": tp.sigmoid}, "expert"),
        ({"kept": 4}, "expert.inner"),
        ({"scale": 2.0}, "expert.inner"),
    ],
)
def test_a_wrong_port_fails(faults, place):
    result = str(compared(**faults))
    assert f"fp32 FAIL at {place}\n" in result
    assert f"fp16 FAIL at {place}\n" in result
