"""A production STU layer in plain PyTorch: the definition of the kernels' result.

Source: `STULayer` of meta-recsys/generative-recommenders, generative_recommenders/modules/stu.py, as in
`reference.stu`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.hstu_attention.argument_checks import check_bounds, check_firsts
from kernels.hstu_attention.eager import hstu_attention_eager, hstu_attention_eager_cached
from kernels.hstu_attention.masks import ProductionMask
from kernels.stu_layer.parameters import NORM_EPS, Parameters, Sizes, split_projection


def stu_layer_eager(
    x: torch.Tensor, offsets: torch.Tensor, mask: ProductionMask, parameters: Parameters, sizes: Sizes
) -> torch.Tensor:
    """(L, D) and (B + 1,) offsets -> (L, D)."""
    u, v, q, k = _projected(x, parameters, sizes)
    return _output(x, u, hstu_attention_eager(q, k, v, offsets, mask), parameters, sizes)


def stu_layer_eager_cached(
    x: torch.Tensor,
    offsets: torch.Tensor,
    firsts: torch.Tensor,
    mask: ProductionMask,
    parameters: Parameters,
    sizes: Sizes,
    values: torch.Tensor,
    keys: torch.Tensor,
) -> torch.Tensor:
    """New rows (L, D) -> (L, D); they go into keys (B, capacity, H, K) and values (B, capacity, H, V)."""
    u, v, q, k = _projected(x, parameters, sizes)
    bounds = offsets.tolist()
    check_bounds(bounds, x.size(0))
    check_firsts(firsts.tolist(), bounds, keys.size(1))
    for row, first in enumerate(firsts.tolist()):
        start, end = bounds[row : row + 2]
        values[row, first : first + end - start] = v[start:end]
        keys[row, first : first + end - start] = k[start:end]
    a = hstu_attention_eager_cached(q, keys, values, offsets, firsts, mask, torch.empty_like(v))
    return _output(x, u, a, parameters, sizes)


def _projected(x: torch.Tensor, parameters: Parameters, sizes: Sizes) -> tuple[torch.Tensor, ...]:
    """(L, D) -> u, v, q, k of `split_projection`."""
    normed = stu_norm_eager(x, parameters.input_norm_weight, parameters.input_norm_bias)
    return split_projection(torch.addmm(parameters.uvqk_beta, normed, parameters.uvqk_weight), sizes)


def _output(
    x: torch.Tensor, u: torch.Tensor, a: torch.Tensor, parameters: Parameters, sizes: Sizes
) -> torch.Tensor:
    """x, (L, D), u, (L, H V), and the attention's result, (L, H, V), -> (L, D)."""
    weight, bias = parameters.output_norm_weight, parameters.output_norm_bias
    y = stu_gate_eager(u, a.flatten(1), weight, bias, sizes.norm_groups)
    return torch.addmm(x, y, parameters.output_weight)


def stu_norm_eager(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = NORM_EPS
) -> torch.Tensor:
    """(L, D) -> (L, D), a layer norm in at least float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return F.layer_norm(x.to(wide), x.shape[-1:], weight.to(wide), bias.to(wide), eps).to(x.dtype)


def stu_gate_eager(
    u: torch.Tensor,
    a: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    norm_groups: int,
    eps: float = NORM_EPS,
) -> torch.Tensor:
    """u, a (L, H V) -> [SiLU(u), a, SiLU(u) * norm(a)], (L, 3 H V); norm and gate are at least float32."""
    dtype, wide = u.dtype, torch.promote_types(u.dtype, torch.float32)
    u, a, weight, bias = F.silu(u).to(wide), a.to(wide), weight.to(wide), bias.to(wide)
    return torch.cat([u, a, u * _output_norm(a, weight, bias, norm_groups, eps)], dim=1).to(dtype)


def _output_norm(
    a: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, norm_groups: int, eps: float
) -> torch.Tensor:
    if not norm_groups:
        return F.layer_norm(a, a.shape[-1:], weight, bias, eps)
    by_head = a.unflatten(1, (norm_groups, -1))
    normed = F.layer_norm(by_head, by_head.shape[-1:], eps=eps)
    return (normed * weight.unsqueeze(1) + bias.unsqueeze(1)).flatten(1)
