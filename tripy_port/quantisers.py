"""Quantisers of weights and inputs, and products of quantised operands. Counterpart of
reference/quantisers.py, which has the rule.

`tp.quantize` rounds halves to even and saturates. Its scale must be a constant, so that a quantiser has its
scale as a parameter. Blocks lie along the first axis, as `tp.quantize` documents.

Codes beside the values are for observers: a graph without them has the quantize and dequantize layers alone.
Codes of int4 and fp8 have no type that a graph may return. They are dequantised with a scale of 1 first.

Legend: K inputs and N outputs of a product, S scales along an axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import nvtripy as tp

from tripy_port.parameters import parameter
from tripy_port.validation import require_choice

if TYPE_CHECKING:
    from configs import Scheme

LARGEST = {"int8": 127.0, "fp8": 448.0, "int4": 7.0}
"""The code of a scale's largest number, by the type of the codes."""
SPANS = ("tensor", "channel", "blocks")
NO_SCHEMES: Mapping[str, Scheme] = MappingProxyType({})
"""The schemes of a model without quantisation."""
_DTYPES = {"int8": tp.int8, "fp8": tp.float8, "int4": tp.int4}
_FP8_UNITS = 512.0
"""Steps of the smallest numbers of fp8 in 1."""
_FP8_ZERO = 126
"""The place of zero among the numbers of fp8."""
_FP8_EXPONENTS = range(1, 15)
"""Exponents above that of the smallest numbers, whose steps are 2^exponent of the smallest ones."""


def fp8_places(values: tp.Tensor) -> tp.Tensor:
    """Numbers of fp8 in float32 -> their places among all of them in ascending order, int32."""
    units = tp.cast(abs(values) * _FP8_UNITS, tp.int32)
    places = units
    for exponent in _FP8_EXPONENTS:
        # Eight numbers have the same exponent.
        places = tp.where(units >= 8 << exponent, units / (1 << exponent) + 8 * exponent, places)
    return tp.where(values < 0.0, _FP8_ZERO - places, _FP8_ZERO + places)


def _integers(quantised: tp.Tensor, numbers: str) -> tp.Tensor:
    """A quantised tensor as integers."""
    if numbers == "int8":
        return quantised
    values = tp.dequantize(quantised, 1.0, tp.float32)
    return fp8_places(values) if numbers == "fp8" else tp.cast(values, tp.int8)


def schemes_inside(module: str, schemes: Mapping[str, Scheme]) -> dict[str, Scheme]:
    """The schemes inside a module, by path from there."""
    prefix = f"{module}."
    return {path.removeprefix(prefix): scheme for path, scheme in schemes.items() if path.startswith(prefix)}


class InputQuantiser(tp.Module):
    """Quantises the input of a product with one scale. Key: ``scale``, a number.

    Args:
        numbers: type of the codes, one of `LARGEST`.
        dtype: of the input and the scale.
    """

    def __init__(self, numbers: str, dtype: tp.dtype = tp.float32) -> None:
        super().__init__()
        require_choice("numbers", numbers, LARGEST)
        self.numbers = numbers
        self.scale = parameter((), dtype)

    def forward(self, x: tp.Tensor) -> tuple[tp.Tensor, tp.Tensor]:
        """(...) -> dequantised values in x's dtype, and codes."""
        quantised = tp.quantize(x, self.scale, _DTYPES[self.numbers])
        return tp.dequantize(quantised, self.scale, x.dtype), _integers(quantised, self.numbers)


class WeightQuantiser(tp.Module):
    """Quantises the weights of a product. Key: ``scale``: a number, (N,), or (blocks, N).

    The last block of a weight is shorter if the size of blocks does not divide K. Zeros fill it up.

    Args:
        scheme: types of codes of `LARGEST`, spans of `SPANS`.
        inputs, outputs: K, N.
        dtype: of the weights and the scale.
    """

    def __init__(self, scheme: Scheme, inputs: int, outputs: int, dtype: tp.dtype = tp.float32) -> None:
        super().__init__()
        require_choice("numbers", scheme.numbers, LARGEST)
        require_choice("span", scheme.span, SPANS)
        self.numbers = scheme.numbers
        self.span = scheme.span
        self.inputs = inputs
        self.outputs = outputs
        self.block_size = min(scheme.block_size, inputs)
        blocks = -(-inputs // self.block_size)
        self.spare = blocks * self.block_size - inputs if self.span == "blocks" else 0
        shapes = {"tensor": (), "channel": (outputs,), "blocks": (blocks, outputs)}
        self.scale = parameter(shapes[self.span], dtype)

    def forward(self, weight_KN: tp.Tensor) -> tuple[tp.Tensor, tp.Tensor]:
        """(K, N) -> dequantised values in the weight's dtype, and codes."""
        if self.spare:
            zeros = tp.zeros((self.spare, self.outputs), dtype=weight_KN.dtype)
            weight_KN = tp.concatenate([weight_KN, zeros], dim=0)
        axis = 1 if self.span == "channel" else None
        quantised = tp.quantize(weight_KN, self.scale, _DTYPES[self.numbers], axis)
        values = tp.dequantize(quantised, self.scale, weight_KN.dtype, axis)
        codes = _integers(quantised, self.numbers)
        if self.spare:
            return values[: self.inputs], codes[: self.inputs]
        return values, codes


class QuantisedProduct(tp.Module):
    """Input times weight, both quantised, or the weight alone.

    Args:
        scheme: of the weights, and of the input where it says so.
        inputs, outputs: K, N.
        dtype: of the operands and the scales.
    """

    def __init__(self, scheme: Scheme, inputs: int, outputs: int, dtype: tp.dtype = tp.float32) -> None:
        super().__init__()
        self.quantise_weight = WeightQuantiser(scheme, inputs, outputs, dtype)
        self.quantise_input = InputQuantiser(scheme.numbers, dtype) if scheme.inputs else None

    def forward(self, x: tp.Tensor, weight_KN: tp.Tensor) -> tp.Tensor:
        """(..., K) and (K, N) -> (..., N)."""
        weight_KN, _ = self.quantise_weight(weight_KN)
        if self.quantise_input is not None:
            x, _ = self.quantise_input(x)
        return x @ weight_KN


class QuantisedLinear(tp.Linear):
    """A linear layer whose product is quantised. Keys: those of a plain one, and the quantisers' scales.

    Args:
        in_features, out_features: K, N.
        scheme: see `QuantisedProduct`.
        dtype: of the weights and of the computation.
    """

    def __init__(
        self, in_features: int, out_features: int, scheme: Scheme, dtype: tp.dtype = tp.float32
    ) -> None:
        super().__init__(in_features, out_features, dtype=dtype)
        self.product = QuantisedProduct(scheme, in_features, out_features, dtype)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        """(..., K) -> (..., N)."""
        return self.product(x, tp.transpose(self.weight, 1, 0)) + self.bias
