"""Fused HSTU attention on jagged sequences; `interface.hstu_attention` is the way in.

* `masks`: what a row sees and how it weighs it, research and production.
* `buckets`: time buckets as integer comparisons.
* `eager`: the operation in plain PyTorch, what the kernels are held to.
* `layout`: what of a call is found and checked once for many.
* `triton_kernel`, `triton_kernel_numbers`, `triton_launch`: the kernel and its launch. These import triton.
"""

from kernels.hstu_attention.interface import dot_precision_of_torch, hstu_attention
from kernels.hstu_attention.masks import ProductionMask, ResearchMask

__all__ = ["ProductionMask", "ResearchMask", "dot_precision_of_torch", "hstu_attention"]
