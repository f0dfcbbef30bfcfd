"""Rows of `quantised.py` with linear layers of public widths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import nvtripy as tp
import torch
from torch.nn import functional

from benchmarks.gpu.quantised_peers import int4_packed, product_peer
from benchmarks.gpu.quantised_sides import (
    HALF,
    ITEM,
    Calls,
    Row,
    Side,
    Truth,
    executable_of,
    number_of_sets,
    plan_of,
    portable_calls,
)
from configs import Scheme
from parity.base.quantisation import SCHEMES, operands
from perf_model.work.quantised import product
from reference.quantisers import LARGEST, InputQuantiser, QuantisedLinear, fp8_numbers
from tripy_port.quantisers import QuantisedLinear as PortQuantisedLinear

Shapes = tuple[tuple[str, int, int, int], ...]
"""Titles, rows, inputs and outputs."""
DLRM: Shapes = (("DLRM", 16384, 1024, 1024),)
HSTU: Shapes = (("HSTU ML-20M, 128 rows of 211", 27008, 256, 1024),)
STU: Shapes = (("STU of DLRMv3", 16384, 512, 2048),)
FEW_ROWS: Shapes = (("DLRM", 2048, 1024, 1024), ("STU of DLRMv3", 64, 512, 2048))
"""Public widths; the last have fewer rows, so that weights are more of the bytes."""
FEW = 2048
"""Rows up to which PyTorch's product of int4 weights is a side: it is made for few."""
FEW_SCHEMES = (
    "int8_channel",
    "fp8_channel",
    "int8_weights_channel",
    "fp8_weights_channel",
    "int4_weights_blocks",
)
"""Schemes with one scale for an output or a block: one scale for all weights takes no other time."""
TENSOR_SCHEMES = tuple(name for name, scheme in SCHEMES.items() if scheme.span == "tensor")


def product_rows(
    shapes: Shapes,
    schemes: Sequence[str] = FEW_SCHEMES,
    compiled: Callable[[Callable], Callable] = torch.compile,
    has_fused: bool = True,
    device: str = "cuda",
) -> Iterator[Row]:
    """Linear layers of some shapes in some schemes."""
    for title, rows, inputs, outputs in shapes:
        count = number_of_sets(rows * (inputs + outputs) * ITEM)
        sets = [torch.randn(rows, inputs, device=device).to(HALF) for _ in range(count)]
        weight_NK = (torch.randn(outputs, inputs, device=device) * inputs**-0.5).to(HALF)
        bias_N = (torch.randn(outputs, device=device) * 0.1).to(HALF)
        sides = _float_sides(sets, weight_NK, bias_N)
        for name in schemes:
            sides |= _scheme_sides(name, sets, weight_NK, bias_N, compiled, has_fused)
        yield Row(f"linear, {title}: {rows} x {inputs} -> {outputs}", sides)


def _float_sides(sets: list[torch.Tensor], weight: torch.Tensor, bias: torch.Tensor) -> dict[str, Side]:
    sides = {}
    (rows, inputs), outputs = sets[0].shape, len(bias)
    oracle = functional.linear(sets[0].double(), weight.double(), bias.double())
    for name, dtype, precision in (("bf16", HALF, "bf16"), ("float32", torch.float32, "fp32")):
        w, b = weight.to(dtype), bias.to(dtype)
        own = [x.to(dtype) for x in sets]
        calls = [lambda x=x, w=w, b=b: functional.linear(x, w, b) for x in own]
        truth = Truth(oracle, calls[0](), inputs, precision=precision)
        work = product(rows, inputs, outputs, dtype.itemsize, bias=True)
        sides[f"{name}, PyTorch"] = Side(calls, truth, work, precision)
    return sides


def quantised_layer(name: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> QuantisedLinear:
    """The reference's layer in a scheme, with scales of the largest number, in the weights' type."""
    scheme = SCHEMES[name]
    outputs, inputs = weight.shape
    layer = QuantisedLinear(inputs, outputs, scheme).to(x.device, weight.dtype).requires_grad_(False)
    layer.weight.data, layer.bias.data = weight, bias
    quantiser, sizes = layer.product.quantise_weight, weight.float().abs()
    if scheme.span == "blocks":
        sizes = sizes.view(outputs, -1, quantiser.block_size).amax(2).t()
    else:
        sizes = sizes.amax(1) if scheme.span == "channel" else sizes.amax()
    quantiser.scale.data = (sizes / LARGEST[scheme.numbers]).to(weight.dtype).contiguous()
    of_input = layer.product.quantise_input
    if of_input is not None:
        of_input.scale.data = (x.float().abs().amax() / LARGEST[scheme.numbers]).to(weight.dtype)
    return layer


def _truth_of_layer(layer: QuantisedLinear, x: torch.Tensor) -> Truth:
    """The layer in float64 with the codes of float32, and in its own type."""
    weight_KN, _ = layer.product.quantise_weight(layer.weight.t().double())
    exact = x.double()
    if layer.product.quantise_input is not None:
        exact = coded_values(layer.product.quantise_input, x)
    oracle = exact @ weight_KN + layer.bias.double()
    return Truth(oracle, layer(x), x.shape[1], modules=2)


def coded_values(quantiser: InputQuantiser, x: torch.Tensor) -> torch.Tensor:
    """The values of the input's codes in float64."""
    _, codes = quantiser(x)
    steps = fp8_numbers().to(x.device)[codes] if quantiser.numbers == "fp8" else codes.double()
    return steps * quantiser.scale.double()


def _scheme_sides(
    name: str,
    sets: list[torch.Tensor],
    weight: torch.Tensor,
    bias: torch.Tensor,
    compiled: Callable,
    has_fused: bool,
) -> dict[str, Side]:
    scheme = SCHEMES[name]
    layer = quantised_layer(name, sets[0], weight, bias)
    truth = _truth_of_layer(layer, sets[0])
    (rows, inputs), outputs = sets[0].shape, len(bias)
    work = product(rows, inputs, outputs, ITEM, scheme, bias=True)

    def side(calls: Calls) -> Side:
        return Side(calls, truth, work, operands(scheme, "bf16"))

    own_sets = [[x] for x in sets]
    info = tp.InputInfo((rows, inputs), tp.bfloat16)
    plan = plan_of(executable_of(port_layer(layer, scheme), [info]), own_sets[0])
    function, arguments = product_peer(layer, rows)
    peer = compiled(function)
    sides = {
        f"{name}, portable": side(portable_calls(plan, own_sets, fused=False)),
        f"{name}, torch.compile": side([lambda x=x: peer(x, *arguments) for x in sets]),
    }
    if has_fused and scheme.inputs:
        # A plan of a coded weight alone is one product and one sum.
        sides[f"{name}, portable, fused"] = side(portable_calls(plan, own_sets, fused=True))
    if scheme.span == "blocks" and sets[0].is_cuda and rows <= FEW:
        call = int4_packed(layer)
        sides[f"{name}, PyTorch's int4 product"] = side([lambda x=x: call(x) for x in sets])
    return sides


def port_layer(layer: QuantisedLinear, scheme: Scheme) -> PortQuantisedLinear:
    """The port's layer with the reference's weights and scales."""
    port = PortQuantisedLinear(layer.in_features, layer.out_features, scheme, tp.bfloat16)
    port.load_state_dict({name: tp.Tensor(tensor.cpu()) for name, tensor in layer.state_dict().items()})
    return port
