"""Tests on the CPU of a machine with a GPU."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import pytest
import torch


@contextlib.contextmanager
def without_gpu() -> Iterator[None]:
    """As on a machine without a GPU, for this process and its children."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        _forget_devices()
        try:
            yield
        finally:
            _forget_devices()


def _forget_devices() -> None:
    """The portable runtime and nvtripy look for a GPU once in a process; the next use looks again."""
    if streams := sys.modules.get("tripy_portable.runtime.streams"):
        streams.device_of.cache_clear()
    if default := sys.modules.get("nvtripy.backend.api.stream"):
        default._default_stream_instances.clear()
