"""Compiles the attention plugin's kernel ahead of time and prints, as JSON, what TensorRT would be given.

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

import kernels.plugins.hstu_attention as registration
from kernels.plugins.ahead_of_time import CAPABILITIES, AttentionShape, CompiledKernel, compile_attention
from kernels.plugins.schema import HSTUAttentionSettings
from tests.kernels.plugin_setup import SETTINGS, attention_inputs

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
KINDS = {
    torch.float32: tensorrt.float32,
    torch.bfloat16: tensorrt.bfloat16,
    torch.int32: tensorrt.int32,
    torch.int64: tensorrt.int64,
}


def compiled(
    capability: int, precision: str, heads: int = 2, k_dim: int = 25, v_dim: int = 50
) -> dict[str, Any]:
    """Facts of one kernel of the research mask."""
    shape = AttentionShape(PRECISIONS[precision], torch.int32, heads, k_dim, v_dim, 211, 128)
    made = compile_attention(shape, HSTUAttentionSettings(211.0, 0.301), "ieee", capability)
    return facts(made, capability) | {
        "capability": capability,
        "precision": precision,
        "heads": heads,
        "has_table": "time_buckets[" in made.ptx,
    }


def facts(made: CompiledKernel, capability: int) -> dict[str, Any]:
    """What TensorRT sees of a kernel, and what the assembler says of its PTX."""
    entry = made.ptx.partition(f".entry {made.name}(")[2].partition(")")[0]
    return {
        "target": next(line.split()[1] for line in made.ptx.splitlines() if line.startswith(".target")),
        "is_elf": made.cubin[:4] == b"\x7fELF",
        "threads": made.threads,
        "shared": made.shared,
        "programs_per_block": made.programs_per_block,
        "arguments": [line.split()[1] for line in entry.strip().split(",\n")],
        "assembler": assembled(made, capability),
    }


def assembled(made: CompiledKernel, capability: int) -> str:
    """What the assembler that triton takes says of the PTX; nothing where it takes it."""
    # Which of its two a capability gets differs between versions of Triton.
    assembler = get_ptxas(capability)
    with tempfile.TemporaryDirectory() as name:
        ptx = Path(name, "kernel.ptx")
        ptx.write_text(made.ptx)
        command = [assembler.path, f"-arch=sm_{capability}{'a' if capability >= 90 else ''}", str(ptx)]
        done = subprocess.run([*command, "-o", f"{name}/cubin"], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def told(precision: str, unknown_heads: bool = False) -> dict[str, Any]:
    """What the registered function returns for rows of 5, 0, 9 and 1."""
    inputs = attention_inputs((5, 0, 9, 1), PRECISIONS[precision])
    descs = [trtp.from_shape_expr(tuple(x.shape), KINDS[x.dtype]) for x in inputs]
    if unknown_heads:
        descs[0].shape_expr[1] = trtp.ShapeExpr()
    return returned(registration.compile_kernel, descs, SETTINGS.to_string())


def returned(compile_kernel: Callable[..., Any], descs: list[Any], settings: str) -> dict[str, Any]:
    """What an ahead-of-time implementation returns on an H100, or its error."""
    with mock.patch("torch.cuda.get_device_capability", return_value=(9, 0)):
        try:
            name, ptx, launch, numbers = compile_kernel(*descs, settings, (descs[2],), 0)
        except ValueError as error:
            return {"error": str(error)}
    return {
        "is_named": f".entry {name}(" in ptx,
        "uses_tf32": "tf32" in ptx,
        "grid": [extent.constant_value() for extent in (launch.grid_x, launch.grid_y, launch.grid_z)],
        "threads": launch.block_x.constant_value(),
        "shared": launch.shared_mem.constant_value(),
        "numbers": [number.constant_value() for number in numbers],
    }


def refused(*case: Any) -> str:
    """Why a kernel is not compiled."""
    try:
        compiled(*case)
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    wanted = [*((capability, "bfloat16") for capability in CAPABILITIES), (90, "float32"), (90, "float16")]
    wanted.append((80, "bfloat16", 4, 128, 128))
    json.dump(
        {
            "kernels": [compiled(*each) for each in wanted],
            "told": {precision: told(precision) for precision in ("float32", "bfloat16")},
            "too_large": refused(80, "bfloat16", 1, 256, 256),
            "unknown": told("float32", unknown_heads=True),
        },
        sys.stdout,
    )
