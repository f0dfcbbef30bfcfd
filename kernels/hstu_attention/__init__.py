"""Fused HSTU attention on jagged sequences; `interface.hstu_attention` is the way in.

* `masks`: visible columns and weights of a row, research and production.
* `buckets`: time buckets as integer comparisons.
* `eager`: the definition in plain PyTorch.
* `layout`: properties of a call that are checked once for many calls.
* `triton_kernel`, `triton_kernel_numbers`, `triton_launch`: the kernel and its launch. These import triton.
* `hopper/`, `hopper_launch`: the form in CUDA C++ for compute capability 9.0, and its launch.
"""

from kernels.hstu_attention.interface import dot_precision_of_torch, hstu_attention
from kernels.hstu_attention.masks import ProductionMask, ResearchMask

__all__ = ["ProductionMask", "ResearchMask", "dot_precision_of_torch", "hstu_attention"]
