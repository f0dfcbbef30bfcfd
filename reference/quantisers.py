"""Quantisers of weights and inputs, and products of quantised operands.

The rule is that of TensorRT's quantize and dequantize layers, with zero points of 0:

    code  = round(x / scale)        int8: halves to even, -128 to 127; int4: the same, -8 to 7
    value = code * scale            fp8: the nearest number of float8 E4M3, ties to even, -448 to 448

Scales are parameters. Codes of weights follow from float32 numbers in a model of any type, the float64
oracle's included: they are a part of the function. Codes of inputs follow from the input's own numbers. A
code may differ where its pre-image lies within round-off of a tie, and nowhere else.

Quantisers return codes beside values, as integers. That of an fp8 number is its place among all of them in
ascending order, with 126 for zero.

Legend: K inputs and N outputs of a product, S scales along an axis.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import nn

from reference.validation import require_choice

if TYPE_CHECKING:
    from configs import Scheme

LARGEST = {"int8": 127.0, "fp8": 448.0, "int4": 7.0}
"""The code of a scale's largest number, by the type of the codes."""
SPANS = ("tensor", "channel", "blocks")
NO_SCHEMES: Mapping[str, Scheme] = MappingProxyType({})
"""The schemes of a model without quantisation."""
_LEAST = {"int8": -128.0, "int4": -8.0}


@functools.cache
def fp8_numbers() -> torch.Tensor:
    """All finite numbers of float8 E4M3 in ascending order, one zero, in float64."""
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    return numbers[numbers.isfinite()].unique()


@functools.cache
def fp8_ties(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """For each pair of neighbours, the largest number of a type that rounds to the lower one."""
    numbers = fp8_numbers()
    ties = ((numbers[:-1] + numbers[1:]) / 2.0).to(dtype)
    # Zero is the middle one, and even; neighbours take turns. A tie of an even upper one goes up.
    goes_up = torch.arange(1, len(numbers)) % 2 == len(numbers) // 2 % 2
    return torch.where(goes_up, torch.nextafter(ties, torch.full_like(ties, -torch.inf)), ties).to(device)


def round_to_codes(steps: torch.Tensor, numbers: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers in steps of a scale -> the codes' values in the same type, and the codes as integers."""
    if numbers == "fp8":
        # One operation decides, so that values and codes cannot disagree.
        # Indices of 64 bits, as ONNX asks for in a lookup.
        places = torch.bucketize(steps.contiguous(), fp8_ties(steps.dtype, steps.device))
        return fp8_numbers().to(steps.device, steps.dtype)[places], places.to(torch.int32)
    values = steps.clamp(_LEAST[numbers], LARGEST[numbers]).round()
    return values, values.to(torch.int8)


def schemes_inside(module: str, schemes: Mapping[str, Scheme]) -> dict[str, Scheme]:
    """The schemes inside a module, by path from there."""
    prefix = f"{module}."
    return {path.removeprefix(prefix): scheme for path, scheme in schemes.items() if path.startswith(prefix)}


class InputQuantiser(nn.Module):
    """Quantises the input of a product with one scale. Key: ``scale``, a number.

    Args:
        numbers: type of the codes, one of `LARGEST`.
    """

    def __init__(self, numbers: str) -> None:
        super().__init__()
        require_choice("numbers", numbers, LARGEST)
        self.numbers = numbers
        self.scale = nn.Parameter(torch.ones(()))
        self.observed: list[torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(...) -> dequantised values in x's dtype, and codes."""
        if self.observed is not None:
            self.observed.append(x.detach())
            return x, torch.zeros_like(x, dtype=torch.int8)
        # float32, or the float64 of the oracle.
        wide = torch.promote_types(x.dtype, torch.float32)
        scale = self.scale.to(wide)
        values, codes = round_to_codes(x.to(wide) / scale, self.numbers)
        return (values * scale).to(x.dtype), codes


class WeightQuantiser(nn.Module):
    """Quantises the weights of a product. Key: ``scale``: a number, (N,), or (blocks, N).

    The last block of a weight is shorter if the size of blocks does not divide K.

    Args:
        scheme: types of codes of `LARGEST`, spans of `SPANS`.
        inputs, outputs: K, N.
    """

    def __init__(self, scheme: Scheme, inputs: int, outputs: int) -> None:
        super().__init__()
        require_choice("numbers", scheme.numbers, LARGEST)
        require_choice("span", scheme.span, SPANS)
        self.numbers = scheme.numbers
        self.span = scheme.span
        self.block_size = min(scheme.block_size, inputs)
        shapes = {"tensor": (), "channel": (outputs,), "blocks": (-(-inputs // self.block_size), outputs)}
        self.scale = nn.Parameter(torch.ones(shapes[self.span]))
        self.observed: list[torch.Tensor] | None = None

    def forward(self, weight_KN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(K, N) -> dequantised values in the weight's dtype, and codes."""
        if self.observed is not None:
            self.observed.append(weight_KN.detach())
            return weight_KN, torch.zeros_like(weight_KN, dtype=torch.int8)
        scale = self.scale
        if self.span == "blocks":
            scale = scale.repeat_interleave(self.block_size, 0)[: weight_KN.shape[0]]
        values, codes = round_to_codes(weight_KN.float() / scale.float(), self.numbers)
        wide = torch.promote_types(weight_KN.dtype, torch.float32)
        return (values.to(wide) * scale.to(wide)).to(weight_KN.dtype), codes


class QuantisedProduct(nn.Module):
    """Input times weight, both quantised, or the weight alone.

    Args:
        scheme: of the weights, and of the input where it says so.
        inputs, outputs: K, N.
    """

    def __init__(self, scheme: Scheme, inputs: int, outputs: int) -> None:
        super().__init__()
        self.quantise_weight = WeightQuantiser(scheme, inputs, outputs)
        self.quantise_input = InputQuantiser(scheme.numbers) if scheme.inputs else None

    def forward(self, x: torch.Tensor, weight_KN: torch.Tensor) -> torch.Tensor:
        """(..., K) and (K, N) -> (..., N)."""
        weight_KN, _ = self.quantise_weight(weight_KN)
        if self.quantise_input is not None:
            x, _ = self.quantise_input(x)
        return x @ weight_KN


class QuantisedLinear(nn.Linear):
    """A linear layer whose product is quantised. Keys: those of a plain one, and the quantisers' scales.

    Args:
        in_features, out_features: K, N.
        scheme: see `QuantisedProduct`.
    """

    def __init__(self, in_features: int, out_features: int, scheme: Scheme) -> None:
        super().__init__(in_features, out_features)
        self.product = QuantisedProduct(scheme, in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., K) -> (..., N)."""
        return self.product(x, self.weight.t()) + self.bias


@contextmanager
def observing(model: nn.Module) -> Iterator[dict[str, InputQuantiser | WeightQuantiser]]:
    """Inside, quantisers pass their tensors on, and keep them in ``observed``. Yields them by path."""
    quantisers = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, (InputQuantiser, WeightQuantiser))
    }
    for quantiser in quantisers.values():
        quantiser.observed = []
    try:
        yield quantisers
    finally:
        for quantiser in quantisers.values():
            quantiser.observed = None
