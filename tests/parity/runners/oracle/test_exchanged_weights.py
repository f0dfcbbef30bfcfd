"""A module with two of its weights, or two of the modules inside it, in each other's place."""

import pytest
import torch

from parity.runners.oracle.exchanged_weights import MOST_ALIKE, exchanges

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


class Gated(torch.nn.Module):
    """`a` and `b` have one shape, as `left` and `right`; the others have no equal."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.full((4,), 2.0))
        self.b = torch.nn.Parameter(torch.full((4,), 3.0))
        self.whole = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.short = torch.nn.Parameter(torch.ones(3))
        self.none = None
        self.register_parameter("absent", None)
        self.register_buffer("low", torch.full((4,), 0.5))
        self.register_buffer("high", torch.full((4,), 0.7))
        self.left = torch.nn.Linear(4, 4)
        self.right = torch.nn.Linear(4, 4)
        self.plain = torch.nn.Linear(4, 4, bias=False)
        self.first, self.second = torch.nn.ReLU(), torch.nn.ReLU()

    def forward(self, x):
        return self.a * self.left(x) - self.b * self.right(x) + self.low * x - self.high * x**2


def parts(module):
    return [module.a, module.b, module.low, module.high, module.left, module.right]


PAIRS = [("weight", 0, 1, "a", "b"), ("weight", 2, 3, "low", "high"), ("module", 4, 5, "left", "right")]
EXPECTED = {
    text: (first, second, places)
    for what, first, second, one, other in PAIRS
    for text, places in (
        (f"with the {what}s {one} and {other} exchanged", (second, first)),
        (f"with the {what} {one} in place of {other}", (first, first)),
        (f"with the {what} {other} in place of {one}", (second, second)),
    )
}


def test_equal_shapes_and_types_are_exchanged():
    assert list(exchanges(Gated())) == list(EXPECTED)


@pytest.mark.parametrize("text", EXPECTED)
def test_inside_an_exchange_the_module_has_the_other_weights(text):
    module = Gated()
    own, before = parts(module), module(X)
    first, second, places = EXPECTED[text]
    expected = [*own]
    expected[first], expected[second] = (own[place] for place in places)
    with exchanges(module)[text]():
        assert all(present is part for present, part in zip(parts(module), expected, strict=True))
        assert not torch.allclose(module(X), before)
    assert all(present is part for present, part in zip(parts(module), own, strict=True))
    assert torch.equal(module(X), before)


def test_an_exchange_ends_where_the_run_raises():
    module = Gated()
    own = parts(module)
    exchange = exchanges(module)["with the weights a and b exchanged"]()
    with pytest.raises(RuntimeError, match="shape"), exchange:
        module(X[:, :3])
    assert all(present is part for present, part in zip(parts(module), own, strict=True))


def test_many_weights_are_not_all_exchanged():
    many = torch.nn.ParameterList(torch.zeros(2) for _ in range(MOST_ALIKE + 1))
    assert len(exchanges(many)) == 3 * MOST_ALIKE * (MOST_ALIKE - 1) // 2
