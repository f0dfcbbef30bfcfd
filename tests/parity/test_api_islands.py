"""Models with a part in float32 in every precision: modules behind it are asked in float32 alone, too."""

import nvtripy as tp
import torch

import parity

B, N = 24, 6
GENERATOR = torch.Generator().manual_seed(5)
STEPS = torch.stack([torch.randperm(N, generator=GENERATOR) for _ in range(B)])
INPUTS = {"x": torch.randn(B, N, 4, generator=GENERATOR), "steps": STEPS}
"""The steps make scores that are distinct in float32, and equal in half types."""


class Order(torch.nn.Module):
    def forward(self, scores):
        return torch.argsort(scores, dim=1).to(torch.int32)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(4, 3)
        self.order = Order()

    def forward(self, x, steps):
        scores = 1.0 + steps.float() * 2.0**-20
        return self.out(x), self.order(scores)


class OrderPort(tp.Module):
    """The place of a score is the number of smaller ones: right where no two are equal."""

    def forward(self, scores):
        smaller = tp.cast(tp.unsqueeze(scores, 1) < tp.unsqueeze(scores, 2), tp.float32)
        places = tp.cast(tp.sum(smaller, dim=2), tp.int32)
        numbers = tp.iota((1, N, N), dim=2, dtype=tp.int32)
        is_at = tp.cast(tp.unsqueeze(places, 2) == numbers, tp.float32)
        columns = tp.iota((1, N, N), dim=1, dtype=tp.float32)
        return tp.cast(tp.sum(is_at * columns, dim=1), tp.int32)


class Port(tp.Module):
    def __init__(self, dtype):
        super().__init__()
        self.out = tp.Linear(4, 3, dtype=dtype)
        self.order = OrderPort()

    def scores(self, steps):
        return 1.0 + tp.cast(steps, tp.float32) * 2.0**-20

    def forward(self, x, steps):
        return self.out(x), self.order(self.scores(steps))


class Rounded(Port):
    def scores(self, steps):
        return tp.cast(super().scores(steps), self.out.dtype)


def compare(port):
    return parity.compare(Model(), port, INPUTS, ("fp32", "fp16", "bf16"))


def test_a_right_port_passes_in_half_types():
    result = compare(Port)
    assert result.passed, result


def test_a_port_that_rounds_before_the_module_fails_in_half_types():
    lines = [line for line in str(compare(Rounded)).splitlines() if line.startswith("Model")]
    assert [line.split()[2].rstrip(":") for line in lines] == ["PASS", "FAIL", "FAIL"]
