"""Shared parts of the kernels' tests: backends that can run here, inputs at a precision, the verdict.

The rule is the project's own (`parity.verdict.rule`): with the float64 oracle of the rounded inputs, a
kernel's
error is at most k times that of eager PyTorch plus a floor, both derived there from the precision's unit
round-off and the length of the longest sum. No test has a tolerance of its own.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Sequence

import pytest
import torch

from parity.base.precision import PRECISIONS
from parity.verdict.rule import judge

GPU = torch.cuda.is_available()
if not GPU:
    # Triton's kernels run in its interpreter then, which must be chosen before they are made.
    os.environ.setdefault("TRITON_INTERPRET", "1")
DEVICE = torch.device("cuda" if GPU else "cpu")
ALL_BACKENDS = ("torch", "triton", "cuda")


def unavailable(backend: str) -> str:
    """Why a backend cannot run here, or nothing."""
    if backend == "triton" and importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if backend == "cuda" and not GPU:
        return "no CUDA device: CUDA C++ has no interpreter"
    if backend == "cuda" and shutil.which("nvcc") is None:
        return "no nvcc"
    return ""


def backends(names: Sequence[str] = ("torch", "triton")) -> list:
    """Parameters for a test of all ``names``, each skipped with its reason where it cannot run."""
    return [
        pytest.param(name, marks=pytest.mark.skipif(bool(reason := unavailable(name)), reason=reason))
        for name in names
    ]


def needs_products(precision: str, backend: str) -> None:
    """Skip what Triton's interpreter cannot multiply; `test_errors` shows that the kernels refuse it."""
    if backend == "triton" and precision == "bf16" and not GPU:
        pytest.skip("Triton's interpreter multiplies bfloat16 as integers")


def drawn(shape: Sequence[int], seed: int, precision: str = "fp32", scale: float = 1.0) -> torch.Tensor:
    """Normal numbers of this precision, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(tuple(shape), generator=generator)).to(PRECISIONS[precision].dtype)


def placed(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.to(DEVICE) for tensor in tensors]


def assert_right(
    result: torch.Tensor,
    eager: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor],
    precision: str,
    longest_sum: int,
    modules: int = 1,
) -> None:
    """Judge a kernel's result.

    Args:
        result: the kernel's result.
        eager: the same function in plain PyTorch; it makes the oracle from inputs widened to float64 and the
            reference's result from the inputs as they are.
        inputs: on the CPU, rounded to the precision, except integers and booleans.
        precision: of inputs and result.
        longest_sum: terms of the longest sum; 0 where a kernel only moves data, and must be equal.
        modules: how many operations with arithmetic follow each other.
    """
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
    oracle = eager(*wide)
    reference = eager(*placed(inputs)).cpu()
    verdict = judge(oracle, reference, result.cpu(), PRECISIONS[precision], longest_sum, modules=modules)
    assert verdict.passed, verdict.reason
