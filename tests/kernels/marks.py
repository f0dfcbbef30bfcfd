"""Marks that skip a kernel's test without the things that it needs."""

from __future__ import annotations

import shutil

import pytest
import torch

from kernels.hstu_attention.interface import missing_triton

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
needs_gpu = pytest.mark.skipif(not GPU, reason="no CUDA device")
IS_HOPPER = GPU and torch.cuda.get_device_capability() == (9, 0)
needs_hopper = pytest.mark.skipif(not IS_HOPPER, reason="no CUDA device of compute capability 9.0")
NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="no nvcc")
needs_triton = pytest.mark.skipif(bool(missing_triton()), reason=missing_triton())
