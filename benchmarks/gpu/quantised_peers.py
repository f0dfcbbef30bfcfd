"""PyTorch's forms of quantised bags and products, for torch.compile.

The bags look up one table with the rows of all tables, of which Inductor makes one kernel. Products of codes
are PyTorch's own operations, with codes of the input and the scales around them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from reference.quantisers import QuantisedLinear, fp8_numbers

HALF = torch.bfloat16


def float_bags(table_ND: torch.Tensor, places_BTP: torch.Tensor, valid_BTP: torch.Tensor) -> torch.Tensor:
    """Sums of rows of a table of numbers, (B, T, D) bfloat16."""
    return _sums(table_ND[places_BTP].float(), valid_BTP)


def coded_bags(
    bits: int,
    codes_NP: torch.Tensor,
    scale_N1: torch.Tensor,
    bias_N1: torch.Tensor,
    places_BTP: torch.Tensor,
    valid_BTP: torch.Tensor,
) -> torch.Tensor:
    """Sums of rows of codes of 8 bits, or of 4 bits and two a byte, (B, T, D) bfloat16."""
    codes = codes_NP[places_BTP]
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
    rows = codes.float() * scale_N1[places_BTP] + bias_N1[places_BTP]
    return _sums(rows.to(HALF).float(), valid_BTP)


def _sums(rows_BTPD: torch.Tensor, valid_BTP: torch.Tensor) -> torch.Tensor:
    return torch.where(valid_BTP[..., None], rows_BTPD, 0.0).sum(2).to(HALF)


def weight_codes(layer: QuantisedLinear) -> torch.Tensor:
    """(N, K) codes of a layer's weights, int8, or float8 numbers."""
    quantiser = layer.product.quantise_weight
    _, codes_KN = quantiser(layer.weight.t())
    if quantiser.numbers == "fp8":
        return fp8_numbers().to(codes_KN.device)[codes_KN].t().to(torch.float8_e4m3fn).contiguous()
    return codes_KN.t().contiguous()


def product_peer(layer: QuantisedLinear, rows: int) -> tuple[Callable, tuple[torch.Tensor, ...]]:
    """A layer's function in PyTorch, and its arguments behind the input."""
    quantiser, of_input = layer.product.quantise_weight, layer.product.quantise_input
    codes_NK, scale, bias = weight_codes(layer), quantiser.scale.float(), layer.bias
    if of_input is None:
        if quantiser.span == "blocks":
            pairs = (codes_NK + 8).to(torch.uint8)
            packed = pairs[:, 0::2] | pairs[:, 1::2] << 4
            return _int4_weights, (packed, scale.t().contiguous(), bias)
        return _coded_weights, (codes_NK, scale.view(-1, 1), bias)
    scale_x = of_input.scale.float()
    if quantiser.numbers == "int8":
        return _int8_codes, (codes_NK, scale_x, scale, bias)
    if quantiser.span == "tensor":
        return _fp8_codes, (codes_NK, scale_x, scale_x, scale, bias)
    by_row = scale_x.expand(rows, 1).contiguous()
    return _fp8_codes, (codes_NK, scale_x, by_row, scale.view(1, -1), bias)


def _int8_codes(
    x: torch.Tensor, codes_NK: torch.Tensor, scale_x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    codes = (x.float() / scale_x).clamp(-128.0, 127.0).round().to(torch.int8)
    sums = torch._int_mm(codes, codes_NK.t())
    return (sums.float() * (scale_x * scale) + bias.float()).to(x.dtype)


def _fp8_codes(
    x: torch.Tensor,
    codes_NK: torch.Tensor,
    scale_x: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    codes = (x.float() / scale_x).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return torch._scaled_mm(codes, codes_NK.t(), scale_a, scale_b, bias=bias, out_dtype=x.dtype)


def _coded_weights(
    x: torch.Tensor, codes_NK: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    return functional.linear(x, (codes_NK.float() * scale).to(x.dtype), bias)


def _int4_weights(
    x: torch.Tensor, packed_NP: torch.Tensor, scale_NS: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    pairs = torch.stack((packed_NP & 15, packed_NP >> 4), -1).flatten(1)
    blocks = (pairs.float() - 8.0).view(*scale_NS.shape, -1)
    weight = (blocks * scale_NS[..., None]).flatten(1).to(x.dtype)
    return functional.linear(x, weight, bias)


def int4_packed(layer: QuantisedLinear) -> Callable[[torch.Tensor], torch.Tensor]:
    """A layer with int4 weights in blocks by PyTorch's own product, made for few rows."""
    quantiser = layer.product.quantise_weight
    pairs = (weight_codes(layer) + 8).to(torch.uint8)
    packed = torch._convert_weight_to_int4pack((pairs[:, 0::2] << 4 | pairs[:, 1::2]).contiguous(), 8)
    scales = torch.stack((quantiser.scale, torch.zeros_like(quantiser.scale)), -1).contiguous()
    bias = layer.bias
    return lambda x: torch._weight_int4pack_mm(x, packed, quantiser.block_size, scales) + bias
