"""A port whose map of weights gives a layer those of another one: the cause names the other layer."""

import nvtripy as tp
import pytest
import torch

import parity

D = 6
X = torch.randn(24, D, generator=torch.Generator().manual_seed(4))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(D, D) for _ in range(3)))

    def forward(self, x):
        return self.layers(x)


class Port(tp.Module):
    """Loads some weights under the names of others.

    Args:
        map: names to load from, by name.
    """

    def __init__(self, dtype, map):
        super().__init__()
        self.layers = tp.Sequential(*(tp.Linear(D, D, dtype=dtype) for _ in range(3)))
        self.map = map

    def load_state_dict(self, state_dict, strict=True):
        mapped = {name: state_dict[self.map.get(name, name)] for name in state_dict}
        return super().load_state_dict(mapped, strict)

    def forward(self, x):
        return self.layers(x)


def names(*numbers):
    return [f"layers.{number}.{name}" for number in numbers for name in ("weight", "bias")]


@pytest.mark.parametrize(
    ("map", "words"),
    [
        (
            {"layers.0.weight": "layers.2.weight"},
            "with the weight layers.2.weight of another module in place of weight",
        ),
        (
            {"layers.0.bias": "layers.1.bias"},
            "with the weight layers.1.bias of another module in place of bias",
        ),
        (
            dict(zip(names(0, 1), names(1, 0), strict=True)),
            "with the weights of another module, layers.1, in place of its own",
        ),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_other_layer_is_named(map, words, precision):
    text = str(parity.compare(Model(), lambda dtype: Port(dtype, map), {"x": X}, (precision,)))
    assert "FAIL at layers.0" in text
    assert f"cause: fits the reference {words}" in text


def test_no_other_layer_is_named_where_a_weight_is_new():
    class Scaled(Port):
        def load_state_dict(self, state_dict, strict=True):
            weight = {"layers.0.weight": state_dict["layers.0.weight"] * 0.7}
            return super().load_state_dict(dict(state_dict) | weight, strict)

    text = str(parity.compare(Model(), lambda dtype: Scaled(dtype, {}), {"x": X}, ("fp32",)))
    assert "FAIL at layers.0" in text
    assert "of another module" not in text
