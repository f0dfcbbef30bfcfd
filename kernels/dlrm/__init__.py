"""Fused kernels of DLRM, and the pointwise kernels of the "Fused Kernels" lecture.

Importing this package imports PyTorch. The first call with a backend imports Triton or compiles CUDA C++.

Every function takes ``backend``:

* "torch": plain PyTorch operations on any device and floating dtype, the definition of the result;
* "triton": one Triton kernel, on CUDA tensors, or on CPU tensors in Triton's interpreter
  (`TRITON_INTERPRET=1` in the environment before the first call);
* "cuda": CUDA C++ compiled on first use by `torch.utils.cpp_extension`: `add_bias_relu`, `lora_activation`
  and `bags_interaction` only.

A backend that cannot run raises `KernelError`. No backend replaces another one.
"""

from __future__ import annotations

from kernels.dlrm.bags import bags_interaction, embedding_bags
from kernels.dlrm.checks import KernelError
from kernels.dlrm.coded_tables import CodedTableGroup, packed_rows
from kernels.dlrm.interaction import dot_interaction, interaction_columns
from kernels.dlrm.mlp import linear_activation, two_layer_mlp
from kernels.dlrm.pointwise import add_bias_relu, lora_activation
from kernels.dlrm.tables import Bags, TableGroup

__all__ = [
    "Bags",
    "CodedTableGroup",
    "KernelError",
    "TableGroup",
    "add_bias_relu",
    "bags_interaction",
    "dot_interaction",
    "embedding_bags",
    "interaction_columns",
    "linear_activation",
    "packed_rows",
    "lora_activation",
    "two_layer_mlp",
]
