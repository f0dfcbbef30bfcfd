"""Compiles a plugin's kernel ahead of time and writes, as JSON, what TensorRT would be given.

    python -m tests.kernels.plugins.compile_plugin research|production|layer CAPABILITY|told

A process of its own: in one where Triton's interpreter was chosen nothing can be compiled.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import tensorrt
import torch
from tensorrt import plugin as trtp
from triton.backends.nvidia.compiler import get_ptxas

from kernels.plugins import hstu_attention, stu_attention, stu_layer
from kernels.plugins.ahead_of_time import (
    AttentionShape,
    CompiledKernel,
    compile_attention,
    compile_entry,
    entry_of_rows,
)
from kernels.plugins.schema import (
    HSTUAttentionSettings,
    STUAttentionSettings,
    STUGateSettings,
    STUNormSettings,
)
from tests.kernels.plugins.plugin_setup import (
    HEADS,
    SETTINGS,
    STU_SETTINGS,
    attention_inputs,
    gate_inputs,
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
    facts = {"precision": precision, "heads": heads, "programs_per_block": result.programs_per_block}
    return facts | facts_of(result, capability)


def facts_of(result: CompiledKernel, capability: int) -> dict[str, Any]:
    """TensorRT's view of a kernel, and the assembler's message on its PTX."""
    entry = result.ptx.partition(f".entry {result.name}(")[2].partition(")")[0]
    return {
        "capability": capability,
        "target": next(line.split()[1] for line in result.ptx.splitlines() if line.startswith(".target")),
        "is_elf": result.cubin[:4] == b"\x7fELF",
        "threads": result.threads,
        "shared": result.shared,
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
    compiling: Callable[..., Any], settings: Any, inputs: list[torch.Tensor], has_unknown: bool = False
) -> dict[str, Any]:
    """The result of a plugin's ahead-of-time implementation on an H100."""
    descs = [trtp.from_shape_expr(tuple(x.shape), KINDS[x.dtype]) for x in inputs]
    if has_unknown:
        descs[0].shape_expr[1] = trtp.ShapeExpr()
    with mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)):
        result = compiling(*descs, settings.to_string(), (descs[0],), 0)
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
        precision: (
            hstu_attention.compile_kernel,
            SETTINGS,
            attention_inputs((5, 0, 9, 1), PRECISIONS[precision]),
        )
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
        "told": told(stu_attention.compile_kernel, every, inputs),
        "unknown": error_of(told, stu_attention.compile_kernel, every, inputs, True),
    }


LAYER = {
    80: [(STUNormSettings(1e-6), "bfloat16", 512)],
    90: [
        (STUNormSettings(1e-6), "bfloat16", 512),
        (STUNormSettings(1e-6), "float32", 6000),
        (STUGateSettings(1e-6, 4), "float16", 512),
    ],
    100: [(STUGateSettings(1e-6), "bfloat16", 512)],
}


def layer_kernels(capability: int) -> list[dict[str, Any]]:
    """Kernels of a GPU: norm and gate in their types and widths."""
    kernels = []
    for settings, precision, width in LAYER[capability]:
        entry = entry_of_rows(PRECISIONS[precision], width, settings)
        # Inputs, without the output.
        facts = {"inputs": len(entry.types) - 1}
        kernels.append(facts | facts_of(compile_entry(entry, capability), capability))
    return kernels


def layer_told() -> dict[str, Any]:
    """Facts for TensorRT of the norm and of both gates, and refusals."""
    norm, gate = STUNormSettings(1e-6), STUGateSettings(1e-6, 2)
    calls = []
    for settings, compiling in (
        (norm, stu_layer.compile_norm),
        (STUGateSettings(1e-6), stu_layer.compile_gate),
        (gate, stu_layer.compile_gate),
    ):
        u, a, *vectors = gate_inputs(301, torch.bfloat16, getattr(settings, "norm_groups", 0))
        calls.append((compiling, settings, [u, *vectors] if settings is norm else [u, a, *vectors]))
    width = calls[0][2][0].size(1)
    blocks = [entry_of_rows(torch.bfloat16, width, call[1]).schedule.block_m for call in calls]
    return {
        "told": [told(*call) | {"block_m": block} for call, block in zip(calls, blocks, strict=True)],
        "unknown": [error_of(told, *call, True) for call in calls[:2]],
    }


def main(plugin: str, part: str) -> Any:
    """The kernels of a GPU, or what TensorRT is told."""
    kernels, telling = {
        "research": (research_kernels, research_told),
        "production": (production_kernels, production_told),
        "layer": (layer_kernels, layer_told),
    }[plugin]
    return telling() if part == "told" else kernels(int(part))


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
