"""The precisions under test and their rounding errors.

`unit_roundoff` is the largest relative error of rounding one result to the precision (half an ulp).
`accumulation_roundoff` is the error of one addition inside a sum. PyTorch, TensorRT and the portable runtime
accumulate half-precision matrix products in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Precision:
    """One arithmetic in which a model is run.

    Attributes:
        name: The name on the command line and in reports.
        dtype: Storage type of weights, inputs and activations.
        unit_roundoff: Relative error of one rounding of a result, dimensionless.
        accumulation_roundoff: Relative error of one addition inside a sum, dimensionless.
        needs_cuda: Whether only a CUDA device has this arithmetic.
    """

    name: str
    dtype: torch.dtype
    unit_roundoff: float
    accumulation_roundoff: float
    needs_cuda: bool = False

    @property
    def is_half(self) -> bool:
        """Whether its numbers have 16 bits."""
        return self.dtype.itemsize < torch.float32.itemsize


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type, such as `float32`, which PyTorch, NumPy and Tripy share."""
    return str(dtype).removeprefix("torch.")


def coarser(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    """The one of two floating-point types whose numbers have the larger round-off."""
    return one if torch.finfo(one).eps > torch.finfo(other).eps else other


_FLOAT32_ROUNDOFF = 2.0**-24

PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        Precision("fp32", torch.float32, _FLOAT32_ROUNDOFF, _FLOAT32_ROUNDOFF),
        # tf32 stores float32 and rounds the factors of a matrix product to 11 significant bits.
        Precision("tf32", torch.float32, 2.0**-11, _FLOAT32_ROUNDOFF, needs_cuda=True),
        Precision("fp16", torch.float16, 2.0**-11, _FLOAT32_ROUNDOFF),
        Precision("bf16", torch.bfloat16, 2.0**-8, _FLOAT32_ROUNDOFF),
    )
}
DEFAULT_PRECISIONS = ("fp32", "fp16", "bf16")
