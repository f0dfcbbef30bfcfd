"""Compiles an attention plugin's kernel ahead of time and writes, as JSON, what TensorRT would be given.

    python -m tests.kernels.plugins.compile_plugin research|production CAPABILITY|told

A process of its own: in one where Triton's interpreter was chosen nothing can be compiled.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import tensorrt
import torch
from tensorrt import plugin as trtp
from triton.backends.nvidia.compiler import get_ptxas

from kernels.plugins import hstu_attention, stu_attention
from kernels.plugins.ahead_of_time import AttentionShape, CompiledKernel, compile_attention
from kernels.plugins.schema import HSTUAttentionSettings, STUAttentionSettings
from tests.kernels.plugins.plugin_setup import (
    HEADS,
    SETTINGS,
    STU_SETTINGS,
    attention_inputs,
    stu_attention_inputs,
)

Settings = HSTUAttentionSettings | STUAttentionSettings
PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
KINDS = {
    torch.float32: tensorrt.float32,
    torch.bfloat16: tensorrt.bfloat16,
    torch.int32: tensorrt.int32,
    torch.int64: tensorrt.int64,
}


def compiled(
    settings: Settings,
    capability: int,
    precision: str,
    heads: int = HEADS,
    dims: tuple[int, int] = (25, 50),
    width: int = 211,
) -> dict[str, Any]:
    """TensorRT's view of a kernel for rows of about `width`, and the assembler's message on its PTX."""
    num_buckets = 128 if isinstance(settings, HSTUAttentionSettings) else 0
    shape = AttentionShape(PRECISIONS[precision], torch.int32, heads, *dims, width, num_buckets)
    result = compile_attention(shape, settings, "ieee", capability)
    entry = result.ptx.partition(f".entry {result.name}(")[2].partition(")")[0]
    return {
        "capability": capability,
        "precision": precision,
        "heads": heads,
        "target": next(line.split()[1] for line in result.ptx.splitlines() if line.startswith(".target")),
        "is_elf": result.cubin[:4] == b"\x7fELF",
        "threads": result.threads,
        "shared": result.shared,
        "programs_per_block": result.programs_per_block,
        "arguments": [line.split()[1] for line in entry.strip().split(",\n")],
        "has_table": "time_buckets[" in result.ptx,
        "assembler": assembled(result, capability),
    }


def assembled(kernel: CompiledKernel, capability: int) -> str:
    """The message of triton's assembler on the PTX; empty if it accepts the PTX."""
    # Versions of Triton choose differently between its two assemblers.
    assembler = get_ptxas(capability)
    with tempfile.TemporaryDirectory() as name:
        ptx = Path(name, "kernel.ptx")
        ptx.write_text(kernel.ptx)
        command = [assembler.path, f"-arch=sm_{capability}{'a' if capability >= 90 else ''}", str(ptx)]
        done = subprocess.run([*command, "-o", f"{name}/cubin"], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def told(
    registration: ModuleType, settings: Settings, inputs: list[torch.Tensor], unknown_heads: bool = False
) -> dict[str, Any]:
    """The result of a plugin's ahead-of-time implementation on an H100."""
    descs = [trtp.from_shape_expr(tuple(x.shape), KINDS[x.dtype]) for x in inputs]
    if unknown_heads:
        descs[0].shape_expr[1] = trtp.ShapeExpr()
    with mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)):
        result = registration.compile_kernel(*descs, settings.to_string(), (descs[2],), 0)
    name, ptx, launch, numbers = result
    return {
        "is_named": f".entry {name}(" in ptx,
        "uses_tf32": "tf32" in ptx,
        "grid": [extent.constant_value() for extent in (launch.grid_x, launch.grid_y, launch.grid_z)],
        "threads": launch.block_x.constant_value(),
        "shared": launch.shared_mem.constant_value(),
        "numbers": [number.constant_value() for number in numbers],
    }


def error_of(function: Callable[..., Any], *arguments: Any) -> str:
    """Why a call is refused; nothing where it is not."""
    try:
        function(*arguments)
    except ValueError as error:
        return str(error)
    return ""


# Of each plugin: the arguments of `compiled` that follow the capability, by capability.
RESEARCH = {
    80: [("bfloat16",), ("bfloat16", 4, (128, 128))],
    90: [("bfloat16",), ("float32",), ("float16",)],
    100: [("bfloat16",)],
}
PRODUCTION = {
    80: [("all", "bfloat16", {})],
    90: [("all", "bfloat16", {}), ("plain", "float32", {}), ("window", "float16", {"width": 8192})],
    100: [("all", "bfloat16", {}), ("scaled", "bfloat16", {"width": 1024})],
}


def research_kernels(capability: int) -> list[dict[str, Any]]:
    """Kernels of a GPU: of its types, and of both sizes of a program."""
    return [compiled(SETTINGS, capability, *arguments) for arguments in RESEARCH[capability]]


def production_kernels(capability: int) -> list[dict[str, Any]]:
    """Kernels of a GPU: of its types, settings and widths."""
    return [
        compiled(STU_SETTINGS[name], capability, precision, **sizes)
        for name, precision, sizes in PRODUCTION[capability]
    ]


def research_told() -> dict[str, Any]:
    """Facts for TensorRT, and refusals."""
    calls = {
        precision: (hstu_attention, SETTINGS, attention_inputs((5, 0, 9, 1), PRECISIONS[precision]))
        for precision in ("float32", "bfloat16")
    }
    return {
        "told": {precision: told(*call) for precision, call in calls.items()},
        "too_large": error_of(compiled, SETTINGS, 80, "bfloat16", 1, (256, 256)),
        "unknown": error_of(told, *calls["float32"], True),
    }


def production_told() -> dict[str, Any]:
    """Facts for TensorRT, and refusals."""
    every = STU_SETTINGS["all"]
    inputs = stu_attention_inputs((5, 0, 9, 2), torch.bfloat16, every)
    return {
        "told": told(stu_attention, every, inputs),
        "unknown": error_of(told, stu_attention, every, inputs, True),
    }


def main(plugin: str, part: str) -> Any:
    """The kernels of a GPU, or what TensorRT is told."""
    kernels, telling = {
        "research": (research_kernels, research_told),
        "production": (production_kernels, production_told),
    }[plugin]
    return telling() if part == "told" else kernels(int(part))


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
