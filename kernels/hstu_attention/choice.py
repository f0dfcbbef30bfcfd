"""The faster form of the attention for a call, by its sizes and its GPU: Triton's or CUDA C++ for Hopper."""

from __future__ import annotations

import torch

from kernels.cuda_build import missing_compiler
from kernels.hstu_attention.hopper_launch import refusal
from kernels.hstu_attention.layout import Call
from kernels.hstu_attention.masks import ProductionMask
from kernels.hstu_attention.schedules import programs_in_fills

# The widest heads that CUDA C++ takes. Triton's form is the faster one for narrower heads.
_WIDE_HEAD = 128
# Average rows of a sequence from which a tile's loop over columns is long enough for its start and end; and
# programs in fills of a large GPU from which one block a multiprocessor has work to share.
_LEAST_ROWS = 8192
_LEAST_FILLS = 12.0


def faster_backend(call: Call, out: torch.Tensor | None = None) -> str:
    """ "hopper", the CUDA C++ form, for many long sequences with wide heads and no window; else "triton".

    Reads sizes on the host alone. benchmarks/results/hopper_attention.md has both forms at drawn shapes.
    """
    q, _, _, offsets, _, mask = call
    sequences = offsets.numel() - 1
    is_whole = isinstance(mask, ProductionMask) and not (mask.max_attn_len or mask.contextual_seq_len)
    is_long = sequences > 0 and q.size(0) >= _LEAST_ROWS * sequences
    if not (is_whole and is_long and q.size(2) == _WIDE_HEAD and programs_in_fills(q) >= _LEAST_FILLS):
        return "triton"
    return "triton" if refusal(call, out) or missing_compiler() else "hopper"
