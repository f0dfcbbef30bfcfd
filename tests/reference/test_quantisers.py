"""Quantisers: codes by Python's and PyTorch's own rounding, and the port with the same codes and values."""

from __future__ import annotations

import nvtripy as tp
import pytest
import torch

from cases.calibration import RULES, scales_of
from parity.base.quantisation import SCHEMES, Scheme
from reference import quantisers
from tripy_port import quantisers as port

INPUTS, OUTPUTS = 13, 9
PRODUCTS = [name for name, scheme in SCHEMES.items() if not scheme.is_of_tables]
DTYPES = {torch.float32: tp.float32, torch.float16: tp.float16, torch.bfloat16: tp.bfloat16}


@pytest.fixture
def weight():
    drawn = torch.randn(INPUTS, OUTPUTS, generator=torch.Generator().manual_seed(0))
    # Channels of other sizes, one of zeros.
    drawn *= torch.logspace(-2, 1, OUTPUTS)
    drawn[:, 4] = 0.0
    return drawn


def host(tensor):
    return torch.from_dlpack(tp.copy(tensor, tp.device("cpu")))


def test_fp8_is_pytorchs_own_with_its_ties_and_ends():
    numbers = quantisers.fp8_numbers()
    assert (len(numbers), numbers[126], numbers[-1]) == (253, 0.0, 448.0)
    ties = (numbers[1:] + numbers[:-1]) / 2
    steps = torch.cat([numbers, ties, torch.randn(5000) * 100, torch.randn(5000) / 100, torch.tensor([1e9])])
    for dtype in (torch.float32, torch.float64):
        values, places = quantisers.round_to_codes(steps.to(dtype), "fp8")
        expected = steps.float().clamp(-448, 448).to(torch.float8_e4m3fn).to(dtype)
        assert torch.equal(values, expected)
        assert torch.equal(numbers[places].to(dtype), values)


@pytest.mark.parametrize(("numbers", "ends"), [("int8", (-128, 127)), ("int4", (-8, 7))])
def test_whole_codes_round_halves_to_even_and_saturate(numbers, ends):
    steps = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 6.49, 500.0, -500.0])
    values, codes = quantisers.round_to_codes(steps, numbers)
    assert codes.tolist() == [0, 2, 2, 0, -2, 6, ends[1], ends[0]]
    assert torch.equal(values, codes.float())


def test_the_ports_places_of_fp8_are_those_of_the_numbers():
    numbers = quantisers.fp8_numbers().float()
    places = host(port.fp8_places(tp.Tensor(numbers)))
    assert places.tolist() == list(range(253))


def pair(name, dtype, weight, block_size=4):
    """A product of both sides with scales of the weight, and of inputs up to 3."""
    scheme = Scheme(**{**vars(SCHEMES[name]), "block_size": block_size})
    reference = quantisers.QuantisedProduct(scheme, INPUTS, OUTPUTS)
    scales = {
        "quantise_weight.scale": scales_of(reference.quantise_weight, [weight], "largest"),
        "quantise_input.scale": torch.tensor(3.0 / quantisers.LARGEST[scheme.numbers]),
    }
    scales = {key: scales[key].to(dtype) for key in reference.state_dict()}
    reference.to(dtype).load_state_dict(scales)
    ported = port.QuantisedProduct(scheme, INPUTS, OUTPUTS, DTYPES[dtype])
    ported.load_state_dict({key: tp.Tensor(scale) for key, scale in scales.items()})
    return reference, ported


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_port_has_the_same_codes_and_values(name, dtype, weight):
    weight = weight.to(dtype)
    reference, ported = pair(name, dtype, weight)
    with torch.inference_mode():
        values, codes = reference.quantise_weight(weight)
    own_values, own_codes = map(host, ported.quantise_weight(tp.Tensor(weight)))
    assert torch.equal(own_codes, codes)
    assert torch.equal(own_values, values)
    assert values.dtype == dtype
    assert (values[:, 4] == 0.0).all()
    # Half a step, of fp8 up to a 16th of the number; and the error of the type of scale and value.
    close = {"int8": 1 / 250, "fp8": 1 / 15, "int4": 1 / 13}[SCHEMES[name].numbers]
    largest = weight.abs().max() if SCHEMES[name].span == "tensor" else weight.abs().amax(0)
    rounding = 2 * torch.finfo(dtype).eps * weight.abs().float()
    assert ((values - weight).abs().float() <= 1.1 * close * largest.float() + rounding).all()


@pytest.mark.parametrize("name", [name for name in PRODUCTS if SCHEMES[name].inputs])
def test_inputs_have_the_same_codes_and_saturate(name, weight):
    reference, ported = pair(name, torch.float32, weight)
    x = torch.randn(50, INPUTS, generator=torch.Generator().manual_seed(1)) * 2
    with torch.inference_mode():
        values, codes = reference.quantise_input(x)
    own_values, own_codes = map(host, ported.quantise_input(tp.Tensor(x)))
    assert torch.equal(own_codes, codes)
    assert torch.equal(own_values, values)
    assert (x.abs() > 3.1).any()
    assert values.abs().max() < 3.1


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_linear_layer_is_that_of_dequantised_numbers(name, weight):
    scheme = SCHEMES[name]
    layer = quantisers.QuantisedLinear(INPUTS, OUTPUTS, scheme)
    ported = port.QuantisedLinear(INPUTS, OUTPUTS, scheme)
    reference, _ = pair(name, torch.float32, weight, scheme.block_size)
    state = {f"product.{key}": scale for key, scale in reference.state_dict().items()}
    state |= {"weight": weight.t().contiguous(), "bias": torch.arange(float(OUTPUTS))}
    layer.load_state_dict(state)
    ported.load_state_dict({key: tp.Tensor(tensor) for key, tensor in state.items()})
    x = torch.randn(6, INPUTS, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        result = layer(x)
        operand = reference.quantise_input(x)[0] if scheme.inputs else x
        expected = operand @ reference.quantise_weight(weight)[0] + state["bias"]
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(host(ported(tp.Tensor(x))), result, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(result, x @ weight + state["bias"], rtol=1e-5, atol=1e-5)


def test_blocks_have_scales_of_their_own_and_a_shorter_last_one():
    scheme = Scheme("int4", "blocks", block_size=4)
    quantiser = quantisers.WeightQuantiser(scheme, 6, 2)
    weight = torch.tensor([[7.0, 70.0]] * 4 + [[0.7, 700.0]] * 2)
    scales = scales_of(quantiser, [weight], "largest")
    torch.testing.assert_close(scales, torch.tensor([[1.0, 10.0], [0.1, 100.0]]))


def test_observed_quantisers_change_nothing(weight):
    reference, _ = pair("int8_channel", torch.float32, weight)
    x = torch.randn(4, INPUTS)
    with torch.inference_mode(), quantisers.observing(reference) as observed:
        assert torch.equal(reference(x, weight), x @ weight)
        assert observed.keys() == {"quantise_weight", "quantise_input"}
        assert torch.equal(observed["quantise_input"].observed[0], x)
        assert torch.equal(observed["quantise_weight"].observed[0], weight)
    assert reference.quantise_input.observed is None


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_every_rule_gives_scales_of_the_parameters_shape(rule, name, weight):
    quantiser = quantisers.QuantisedProduct(SCHEMES[name], INPUTS, OUTPUTS).quantise_weight
    scales = scales_of(quantiser, [weight], rule)
    assert scales.shape == quantiser.scale.shape
    assert (scales > 0.0).all()
