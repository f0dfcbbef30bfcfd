"""A production STU layer as five launches, six behind a cache. Imports triton.

The products are PyTorch's. With the norm, the activation and the gate inside of Triton's products, a layer
takes longer on an H200 (benchmarks/results/stu_layers.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton

from kernels.hstu_attention import (
    ProductionMask,
    dot_precision_of_torch,
    hstu_attention,
    hstu_attention_cached,
)
from kernels.hstu_attention.new_rows import Appended
from kernels.stu_layer.parameters import NORM_EPS, Parameters, Sizes, split_cached, split_projection
from kernels.stu_layer.triton_kernels import gate_kernel, keep_kernel, norm_kernel

# Elements of a program: enough loads in flight for the memory, few enough for the registers.
_ELEMENTS = 4096


# What a layer does between its projection and its gate: its number, [u, v, q, k] and the result's place.
Attend = Callable[[int, torch.Tensor, torch.Tensor], None]


def launch(
    x: torch.Tensor,
    offsets: torch.Tensor,
    max_seq_len: int,
    mask: ProductionMask,
    layers: Sequence[Parameters],
    sizes: Sizes,
    attention: str,
) -> torch.Tensor:
    """(L, D) -> (L, D), for arguments checked by `interface.stu_layers`. attention: its backend."""
    dot_precision = dot_precision_of_torch(x)

    def attend(_: int, uvqk: torch.Tensor, a: torch.Tensor) -> None:
        _, v, q, k = split_projection(uvqk, sizes)
        hstu_attention(
            q, k, v, offsets, max_seq_len, mask, backend=attention, dot_precision=dot_precision, out=a
        )  # fmt: skip

    return _layers(x, layers, sizes, attend)


def launch_cached(
    x: torch.Tensor,
    offsets: torch.Tensor,
    appended: Appended,
    max_seq_len: int,
    mask: ProductionMask,
    layers: Sequence[Parameters],
    sizes: Sizes,
    cache: Sequence[torch.Tensor],
) -> torch.Tensor:
    """(L, D) new rows -> (L, D), for arguments checked by `cache.extend_stu_layers`."""
    dot_precision = dot_precision_of_torch(x)

    def attend(number: int, uvqk: torch.Tensor, a: torch.Tensor) -> None:
        keep(uvqk, offsets, appended, sizes, cache[number])
        v, k = split_cached(cache[number], sizes)
        _, _, q, _ = split_projection(uvqk, sizes)
        hstu_attention_cached(
            q, k, v, offsets, appended.firsts, max_seq_len, appended.max_new, mask,
            dot_precision=dot_precision, out=a,
        )  # fmt: skip

    return _layers(x, layers, sizes, attend)


def _layers(x: torch.Tensor, layers: Sequence[Parameters], sizes: Sizes, attend: Attend) -> torch.Tensor:
    """(L, D) -> (L, D)."""
    if x.size(0) == 0:
        return torch.empty_like(x)
    # All layers share the buffers. The factor of the output product holds u, the attention's result and gate.
    normed = x.new_empty(x.shape)
    uvqk = x.new_empty((x.size(0), sizes.projected))
    factor = x.new_empty((x.size(0), 3 * sizes.gates))
    u = uvqk[:, : sizes.gates]
    a = factor[:, sizes.gates : 2 * sizes.gates]
    out = x.new_empty(x.shape)
    for number, parameters in enumerate(layers):
        norm(x, parameters.input_norm_weight, parameters.input_norm_bias, normed)
        torch.addmm(parameters.uvqk_beta, normed, parameters.uvqk_weight, out=uvqk)
        attend(number, uvqk, a.unflatten(1, (sizes.num_heads, -1)))
        weight, bias = parameters.output_norm_weight, parameters.output_norm_bias
        gate(u, a, weight, bias, sizes.norm_groups, factor)
        # From the second layer on the residual lies in `out` already: PyTorch copies it otherwise.
        x = torch.addmm(x, factor, parameters.output_weight, out=out)
    return x


def keep(
    uvqk: torch.Tensor, offsets: torch.Tensor, appended: Appended, sizes: Sizes, cached: torch.Tensor
) -> None:
    """Values and keys of new rows, from (L, 2 H (V + K)) into (B, capacity, H (V + K))."""
    block_m, block_d, warps = block_of(cached.size(2))
    keep_kernel[(triton.cdiv(appended.max_new, block_m), cached.size(0))](
        uvqk,
        cached,
        offsets,
        appended.firsts,
        appended.capacity,
        STRIDE=uvqk.stride(0),
        GATES=sizes.gates,
        FACTORS=sizes.factors,
        BLOCK_M=block_m,
        BLOCK_D=block_d,
        num_warps=warps,
    )


def norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, normed: torch.Tensor, eps: float = NORM_EPS
) -> None:
    """The input's layer norm, (L, D), in `normed`."""
    rows, width = x.shape
    block_m, block_d, warps = block_of(width)
    norm_kernel[(triton.cdiv(rows, block_m),)](
        x,
        weight,
        bias,
        normed,
        rows,
        eps,
        stride=x.stride(0),
        D=width,
        BLOCK_M=block_m,
        BLOCK_D=block_d,
        num_warps=warps,
    )


def gate(
    u: torch.Tensor,
    a: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    norm_groups: int,
    factor: torch.Tensor,
    eps: float = NORM_EPS,
) -> None:
    """Puts SiLU(u), a, and their gated norm into `factor`, (L, 3 H V).

    Args:
        u, a: (L, H V); a may be the middle third of `factor`.
        weight, bias: (H V,), or (H,) with group norm.
        norm_groups: heads with a norm of their own; 0 for one norm of all.
        factor: (L, 3 H V).
        eps: added to the variance.
    """
    rows, width = u.shape
    groups = norm_groups or 1
    block_m, block_s, warps = block_of(width // groups)
    count = rows * groups
    gate_kernel[(triton.cdiv(count, block_m),)](
        u,
        a,
        weight,
        bias,
        factor,
        count,
        eps,
        stride_u=u.stride(0),
        stride_a=a.stride(0),
        WIDTH=width,
        GROUPS=groups,
        SIZE=width // groups,
        IS_GROUP_NORM=norm_groups > 0,
        COPIES_A=a.data_ptr() != factor[:, width:].data_ptr(),
        BLOCK_M=block_m,
        BLOCK_S=block_s,
        num_warps=warps,
    )


def block_of(size: int) -> tuple[int, int, int]:
    """Groups of `size` elements in a program, elements of a group in it, and its warps."""
    padded = triton.next_power_of_2(size)
    return max(1, _ELEMENTS // padded), padded, 4 if padded <= _ELEMENTS else 8
