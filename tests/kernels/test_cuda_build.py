"""Launches and builds of CUDA C++: what they tell when they fail."""

from __future__ import annotations

import contextlib
import ctypes
from types import SimpleNamespace

import pytest
import torch
from torch.utils import cpp_extension

from kernels import cuda_build

ERRORS = {-1: "this size is not compiled"}


class Arguments(ctypes.Structure):
    _fields_ = (("size", ctypes.c_int32),)


@pytest.fixture(autouse=True)
def a_device(monkeypatch):
    """A device with a current stream, which nothing here needs."""
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=7))


def launched(error: int) -> list:
    calls = []

    def function(arguments, stream):
        calls.append(stream)
        return error

    cuda_build.launch(function, Arguments(), torch.device("cpu"), ERRORS)
    return calls


def test_a_launch_is_on_the_current_stream():
    assert launched(0) == [7]


@pytest.mark.parametrize(("error", "reason"), [(-1, ERRORS[-1]), (700, "cudaError_t 700")])
def test_a_launch_that_fails_has_the_reason(error, reason):
    with pytest.raises(RuntimeError, match=f"^backend='hopper': the launch fails: {reason}$"):
        launched(error)


def test_a_build_without_a_compiler_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    assert "needs nvcc" in cuda_build.missing_compiler()
    with pytest.raises(RuntimeError, match="^CUDA C\\+\\+ needs nvcc: install the CUDA toolkit"):
        cuda_build.module("none", [tmp_path / "none.cu"])
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", str(tmp_path))
    assert cuda_build.missing_compiler() == ""
