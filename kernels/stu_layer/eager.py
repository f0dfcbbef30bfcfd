"""A production STU layer in plain PyTorch: the definition of the kernels' result.

Source: `STULayer` of meta-recsys/generative-recommenders, generative_recommenders/modules/stu.py, as in
`reference.stu`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.hstu_attention.eager import hstu_attention_eager
from kernels.hstu_attention.masks import ProductionMask
from kernels.stu_layer.parameters import NORM_EPS, Parameters, Sizes, split_projection


def stu_layer_eager(
    x: torch.Tensor, offsets: torch.Tensor, mask: ProductionMask, parameters: Parameters, sizes: Sizes
) -> torch.Tensor:
    """(L, D) and (B + 1,) offsets -> (L, D). Norms and gate are at least float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    weight, bias = parameters.input_norm_weight.to(wide), parameters.input_norm_bias.to(wide)
    normed = F.layer_norm(x.to(wide), x.shape[-1:], weight, bias, NORM_EPS).to(x.dtype)
    uvqk = torch.addmm(parameters.uvqk_beta, normed, parameters.uvqk_weight)
    u, v, q, k = split_projection(uvqk, sizes)
    u = F.silu(u).to(wide)
    a = hstu_attention_eager(q, k, v, offsets, mask).flatten(1).to(wide)
    y = torch.cat([u, a, u * _output_norm(a, parameters, sizes)], dim=1).to(x.dtype)
    return torch.addmm(x, y, parameters.output_weight)


def _output_norm(a: torch.Tensor, parameters: Parameters, sizes: Sizes) -> torch.Tensor:
    weight, bias = parameters.output_norm_weight.to(a.dtype), parameters.output_norm_bias.to(a.dtype)
    if not sizes.use_group_norm:
        return F.layer_norm(a, a.shape[-1:], weight, bias, NORM_EPS)
    by_head = a.unflatten(1, (sizes.num_heads, sizes.hidden_dim))
    normed = F.layer_norm(by_head, by_head.shape[-1:], eps=NORM_EPS)
    return (normed * weight.unsqueeze(1) + bias.unsqueeze(1)).flatten(1)
