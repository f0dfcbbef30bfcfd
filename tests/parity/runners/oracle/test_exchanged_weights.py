"""A module with weights or modules of its own in each other's place, or with weights of another module."""

import pytest
import torch

from parity.runners.oracle.exchanged_weights import MOST_ALIKE, exchanges, taken_from_others

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


def layers(count, rows=4):
    return torch.nn.Sequential(*(torch.nn.Linear(4, rows) for _ in range(count)))


def taken(model, path):
    return taken_from_others(dict(model.named_modules()), path)


def test_weights_of_the_nearest_modules_are_taken_first():
    model = torch.nn.Sequential(torch.nn.ReLU(), *layers(3))
    own = "in place of its own"
    assert list(taken(model, "1")) == [
        f"with the weights of another module, 2, {own}",
        f"with the weights of another module, 3, {own}",
        "with the weight 2.weight of another module in place of weight",
        "with the weight 3.weight of another module in place of weight",
        "with the weight 2.bias of another module in place of bias",
        "with the weight 3.bias of another module in place of bias",
    ]


def test_inside_the_module_has_the_weights_of_the_other_one():
    model = layers(2)
    first, second = model
    own = first.weight, first.bias
    exchanges = taken(model, "0")
    with exchanges["with the weights of another module, 1, in place of its own"]():
        assert first.weight is second.weight
        assert first.bias is second.bias
    with exchanges["with the weight 1.weight of another module in place of weight"]():
        assert first.weight is second.weight
        assert first.bias is own[1]
    assert first.weight is own[0]
    assert first.bias is own[1]


def test_buffers_are_taken_too():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4))
    first, second = model
    with taken(model, "0")["with the weight 1.running_mean of another module in place of running_mean"]():
        assert first.running_mean is second.running_mean
        assert first.running_var is not second.running_var


@pytest.mark.parametrize(
    "other",
    [
        torch.nn.Linear(4, 3),
        torch.nn.Linear(4, 4).double(),
        torch.nn.ReLU(),
        torch.nn.Linear(3, 4, bias=False),
    ],
)
def test_weights_of_other_shapes_types_or_none_are_left(other):
    assert not taken(torch.nn.Sequential(torch.nn.Linear(4, 4), other), "0")


def test_a_module_of_another_class_gives_single_weights():
    model = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.GroupNorm(2, 4))
    assert list(taken(model, "0")) == [
        "with the weight 1.weight of another module in place of weight",
        "with the weight 1.bias of another module in place of bias",
    ]


def test_a_weight_of_the_whole_model_is_named_without_a_path():
    model = layers(1)
    model.register_parameter("bias", torch.nn.Parameter(torch.ones(4)))
    assert list(taken(model, "0")) == ["with the weight bias of another module in place of bias"]


def test_a_shared_weight_is_no_other_one():
    model = layers(2)
    model[1].weight = model[0].weight
    assert list(taken(model, "0")) == ["with the weight 1.bias of another module in place of bias"]


def test_few_modules_of_many_give_their_weights():
    found = taken(layers(2 * MOST_ALIKE), "0")
    assert len(found) == 3 * MOST_ALIKE
    assert f"with the weight {MOST_ALIKE}.bias of another module in place of bias" in found
    assert f"with the weight {MOST_ALIKE + 1}.bias of another module in place of bias" not in found
