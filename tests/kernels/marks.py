"""Marks that skip a kernel's test without the things that it needs."""

from __future__ import annotations

import pytest
import torch

from kernels.hstu_attention.interface import missing_triton

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
needs_gpu = pytest.mark.skipif(not GPU, reason="no CUDA device")
needs_triton = pytest.mark.skipif(bool(missing_triton()), reason=missing_triton())
