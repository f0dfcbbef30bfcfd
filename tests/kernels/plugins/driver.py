"""Launches a compiled kernel through the CUDA driver with its own arguments alone, as TensorRT does."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from kernels.plugins.ahead_of_time import AttentionShape, CompiledKernel, compile_attention
from kernels.plugins.schema import HSTUAttentionSettings, STUAttentionSettings


def attention(
    shape: AttentionShape,
    settings: HSTUAttentionSettings | STUAttentionSettings,
    inputs: list[torch.Tensor],
    longest: int,
) -> torch.Tensor:
    """An attention plugin's output by its kernel, which is compiled for this GPU; `longest` is N."""
    major, minor = torch.cuda.get_device_capability()
    result = compile_attention(shape, settings, "ieee", 10 * major + minor)
    v, offsets = inputs[2:4]
    out = torch.full_like(v, float("nan"))
    sequences, blocks = offsets.numel() - 1, -(-longest // result.block_m)
    grid = blocks * sequences * result.programs_per_block
    launch(result, grid, [*inputs, sequences, longest, blocks, out])
    return out


def launch(kernel: CompiledKernel, grid: int, arguments: Sequence[torch.Tensor | int]) -> None:
    """Runs a kernel on PyTorch's current stream and waits: tensors by address, numbers as int32."""
    driver = ctypes.CDLL("libcuda.so.1")

    def check(result: int) -> None:
        assert result == 0, f"CUDA driver error {result}"

    torch.cuda.current_stream().synchronize()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    check(driver.cuModuleLoadData(ctypes.byref(module), ctypes.c_char_p(kernel.ptx.encode())))
    check(driver.cuModuleGetFunction(ctypes.byref(function), module, kernel.name.encode()))
    held = [
        ctypes.c_void_p(argument.data_ptr())
        if isinstance(argument, torch.Tensor)
        else ctypes.c_int32(argument)
        for argument in arguments
    ]
    pointers = (ctypes.c_void_p * len(held))(*(ctypes.cast(ctypes.byref(x), ctypes.c_void_p) for x in held))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    size = (grid, 1, 1, kernel.threads, 1, 1, kernel.shared)
    check(driver.cuLaunchKernel(function, *size, stream, pointers, None))
    torch.cuda.synchronize()
    check(driver.cuModuleUnload(module))
