"""Fused HSTU attention on jagged sequences; `interface.hstu_attention` is the way in.

* `masks`: what a row sees and how it weighs it, research and production.
* `buckets`: time buckets as integer comparisons.
* `eager`: the operation in plain PyTorch, what the kernels are held to.
* `triton_kernel`, `triton_launch`: the kernel and its launch. The only modules here that import triton.
"""

from kernels.hstu_attention.interface import hstu_attention
from kernels.hstu_attention.masks import ProductionMask, ResearchMask

__all__ = ["ProductionMask", "ResearchMask", "hstu_attention"]
