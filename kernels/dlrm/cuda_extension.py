"""The CUDA C++ forms of some kernels. The first call builds them; see `kernels.cuda_build`."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType

import torch

from kernels.cuda_build import module
from kernels.dlrm.checks import KernelError
from kernels.dlrm.tables import Bags, TableGroup

_HERE = Path(__file__).parent
SOURCES = ("binding.cpp", "pointwise.cu", "bags_interaction.cu")


@functools.cache
def extension() -> ModuleType:
    """The extension, compiled at the first call on a machine in about 30 seconds.

    Raises:
        KernelError: the CUDA compiler is missing, or the sources do not build; with the compiler's message.
    """
    try:
        return module("tripy_recsys_dlrm", [_HERE / source for source in SOURCES])
    except RuntimeError as error:
        raise KernelError(f"backend='cuda': {error}") from error


def launch_pointwise(
    x: torch.Tensor,
    y: torch.Tensor | None,
    bias_N: torch.Tensor,
    scale: float,
    activation: str,
    out: torch.Tensor,
) -> None:
    """Write activation(x + scale * y + bias) to ``out``; without ``y``, activation(x + bias)."""
    extension().pointwise(x, y, bias_N, scale, activation == "sigmoid", out)


def launch_bags_interaction(
    dense_BD: torch.Tensor, group: TableGroup, bags: Bags, itself: bool, out: torch.Tensor
) -> None:
    """Write the interaction of ``dense_BD`` and the pooled rows to ``out``."""
    extension().bags_interaction(
        dense_BD,
        group.addresses_T,
        bags.indices_L,
        bags.weights_L,
        bags.offsets,
        group.tables[0],
        itself,
        out,
    )
