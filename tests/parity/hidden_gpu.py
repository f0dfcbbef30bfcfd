"""Tests of what runs on the processor, on a machine that has a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch


@contextlib.contextmanager
def without_gpu() -> Iterator[None]:
    """As on a machine without a GPU, for this process and those that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        yield
