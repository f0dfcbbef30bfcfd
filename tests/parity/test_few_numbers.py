"""No correct port fails by chance: kinds of models whose checks rest on few, equal, tiny or no numbers.

Each is a small net with a right port, judged as a plain run does, with all batches of its plan.
"""

from dataclasses import dataclass

import numpy as np
import nvtripy as tp
import pytest
import torch

import parity
from parity.verdict.sensitivity import ENOUGH_ROWS

WIDTH = 6
ACTIVATIONS = {"relu": (torch.nn.ReLU, tp.relu), "sigmoid": (torch.nn.Sigmoid, tp.sigmoid)}


class Net(torch.nn.Module):
    """Two layers and an activation between them, or behind a single one."""

    def __init__(self, kind):
        super().__init__()
        self.inner = torch.nn.Linear(WIDTH, kind.width)
        self.act = ACTIVATIONS[kind.activation][0]()
        self.outer = torch.nn.Linear(kind.width, 1)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(generator=generator)
            self.inner.weight.mul_(kind.scale)
            self.inner.bias.fill_(kind.bias)
            if kind.cancels:
                self.outer.bias.copy_(-self.act(self.inner.bias) @ self.outer.weight[0])

    def forward(self, x):
        return self.outer(self.act(self.inner(x)))


class Activation(tp.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Port(tp.Module):
    def __init__(self, kind, dtype):
        super().__init__()
        self.inner = tp.Linear(WIDTH, kind.width, dtype=dtype)
        self.act = Activation(ACTIVATIONS[kind.activation][1])
        self.outer = tp.Linear(kind.width, 1, dtype=dtype)

    def forward(self, x):
        return self.outer(self.act(self.inner(x)))


@dataclass
class Kind:
    """A kind of model.

    Attributes:
        activation: Key of `ACTIVATIONS`.
        width, bias, scale: Of the inner layer.
        rows: Rows of the typical batch.
        tail: Power of the inputs: a larger one has few large rows.
        cancels: Whether the outer bias cancels nearly the whole sum that it is added to.
    """

    activation: str = "relu"
    width: int = 8
    bias: float = 0.0
    scale: float = 1.0
    rows: int = 4
    tail: float = 1.0
    cancels: bool = False


class Small(parity.Case):
    name = "small"
    initial = "own"

    def __init__(self, kind):
        self.kind, self.batch_size = kind, kind.rows

    def build_reference(self):
        return Net(self.kind)

    def build_port(self, dtype):
        return Port(self.kind, dtype)

    def make_inputs(self):
        drawn = np.random.default_rng(self.seed).standard_normal((self.batch_size, WIDTH))
        return {"x": (np.sign(drawn) * np.abs(drawn) ** self.kind.tail).astype(np.float32)}


KINDS = {
    "one row": Kind(rows=1),
    "one column": Kind(width=1),
    "a layer of zeros": Kind(bias=-1e3),
    "a layer that is nearly always 0": Kind(bias=-2.6, scale=0.5, width=1),
    "a few large rows": Kind(tail=4.0),
    "a constant layer": Kind(scale=0.0, bias=0.3),
    "a saturated sigmoid": Kind("sigmoid", bias=12.0),
    "numbers below the normal ones of fp16": Kind("sigmoid", bias=-15.0, scale=0.1),
    "many rows of a sum that a bias cancels": Kind("sigmoid", scale=0.03, rows=600, cancels=True),
    "zeros behind an exact sigmoid": Kind("sigmoid", bias=-200.0),
}


FULL = pytest.mark.full


@pytest.mark.parametrize(
    "precision", [pytest.param("fp32", marks=FULL), pytest.param("fp16", marks=FULL), "bf16"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_right_port_passes(kind, precision):
    result = parity.check(Small(KINDS[kind]), (precision,))
    assert result.passed, str(result)


def test_a_layer_of_zeros_says_that_it_is_one():
    result = parity.check(Small(KINDS["a layer of zeros"]), ("bf16",))
    (entry,) = (entry for _, _, entry in result.report.runner_reports() if entry.runner == "tripy")
    (layer,) = (module for module in entry.modules if module.tap == "act")
    assert (layer.status, layer.by_nature) == ("PASS", True)
    assert any(note.endswith(f"the result is 0 in all {ENOUGH_ROWS} rows") for note in layer.notes)
