"""Compiles the attention kernel in forms that its launcher chooses, for a GPU that need not be there.

    python -m tests.kernels.hstu_attention.compile_all CAPABILITY LAST

Writes a JSON object: a form's name to its shared memory in bytes. It needs a process of its own: tests
interpret the kernels, and an import decides between both.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import replace

import torch

from kernels.hstu_attention import ProductionMask, ResearchMask, Schedule
from kernels.hstu_attention.ahead import ahead_constants, ahead_descriptors, ahead_kernel, ahead_numbers
from kernels.hstu_attention.layout import Call
from kernels.hstu_attention.pack_launch import pack_constants, pack_numbers
from kernels.hstu_attention.triton_kernel import hstu_attention_kernel
from kernels.hstu_attention.triton_kernel_packs import packed_attention_kernel
from kernels.hstu_attention.triton_launch import (
    _mask_arguments,
    choose_schedule,
    descriptors,
    kernel_constants,
    kernel_numbers,
)
from tests.kernels.triton_compiling import compile_kernel

# Long sequences.
LONGEST = 8192
# Many tiny ones.
MANY, TINY = 1000, 20
AHEAD_HEADS = (16, 32, 64, 128)


def attention_forms() -> Iterator[tuple[str, str, torch.Tensor, ResearchMask | ProductionMask]]:
    """(name, dot precision, q without rows, mask)."""
    # A dot product without tensor cores takes long to compile: in one size.
    float32, float16 = torch.float32, torch.float16
    for dtype, dots, dims in (
        (float32, ("ieee",), (25,)),
        (float32, ("tf32x3",), (25, 128)),
        (float16, ("ieee",), (25, 128, 256)),
    ):
        for dim in dims:
            q = torch.empty(0, 2, dim, dtype=dtype)
            times, weights = (
                torch.empty(3, LONGEST, dtype=torch.int64),
                torch.empty(2 * LONGEST - 1, dtype=dtype),
            )
            targets = torch.empty(3, dtype=torch.int64)
            masks = (
                ResearchMask(weights, 1.0, times, torch.empty(129, dtype=dtype)),
                ProductionMask(1.0, 1.0, None, targets, 20, 3),
            )
            for dot, mask in itertools.product(dots, masks):
                yield f"{dtype}, {dot}, heads of {dim}, {type(mask).__name__}", dot, q, mask


def main(capability: int, last: int) -> dict[str, int]:
    """Bytes of shared memory by name of form, of the `last` forms; 0 means all."""
    shared = {}
    for name, dot, q, mask in list(attention_forms())[-last:]:
        # The assembly that only a GPU has, and its copy engine if it has one.
        chosen = choose_schedule(q.to("meta"), q.to("meta"), LONGEST, mask)
        chosen = replace(chosen, use_tma=chosen.use_tma and capability >= 90 and q.size(2) == 128)
        x = torch.empty(16, 2, q.size(2), dtype=q.dtype)
        offsets = torch.empty(4, dtype=torch.int64)
        # x stands for every tensor of rows, and for an unused one, since a launch needs one.
        of_mask = _mask_arguments(mask, x.device)
        pair = descriptors(x, x, chosen) if chosen.use_tma else (x, x)
        tensors = (x, x, x, x, *pair, offsets, offsets, *(x if t is None else t for t in of_mask.tensors))
        numbers = kernel_numbers(of_mask, offsets.numel() - 1, 1, 0, mask.divisor)
        constants = kernel_constants(x, x, x, x, of_mask.flags, dot, chosen)
        names = (parameter.name for parameter in hstu_attention_kernel.params)
        arguments = dict(zip(names, (*tensors, *numbers, *constants), strict=True))
        options = {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
        kernel = compile_kernel(hstu_attention_kernel, arguments, capability, options)
        shared[name] = kernel.metadata.shared
        if isinstance(mask, ProductionMask) and dot == "ieee" and q.dtype != torch.float32:
            cached = arguments | {"CACHED": True}
            kernel = compile_kernel(hstu_attention_kernel, cached, capability, options)
            shared[f"{name}, cached"] = kernel.metadata.shared
            shared[f"{name}, tiny"] = compile_pack(q, mask, capability)
    if capability == 90:
        for dim in AHEAD_HEADS[-last:]:
            for has_context in (False, True):
                name = f"ahead, heads of {dim}{', contextual rows' * has_context}"
                shared[name] = compile_ahead(dim, has_context)
    return shared


def compile_ahead(dim: int, has_context: bool) -> int:
    """Bytes of shared memory of the form of `ahead` with many long sequences."""
    x = torch.empty(16, 2, dim, dtype=torch.bfloat16)
    offsets, targets = torch.empty(4, dtype=torch.int64), torch.empty(3, dtype=torch.int64)
    call = Call(x, x, x, offsets, LONGEST, ProductionMask(1.0, 1.0, None, targets, 20, 3))
    chosen = Schedule(
        64, 64, 4, 2, sigmoid="half", use_tma=True, registers=128 if dim < 128 else 0, ahead=True
    )
    constants = ahead_constants(call, x, (True, True, has_context, False), chosen)
    numbers = ahead_numbers((3, 20, 1.0), 3, 1.0)
    names = (parameter.name for parameter in ahead_kernel().params)
    values = (x, x, *ahead_descriptors(call, chosen), offsets, targets, x, *numbers, *constants)
    arguments = dict(zip(names, values, strict=True))
    options = {"num_warps": chosen.num_warps} | ({"maxnreg": chosen.registers} if chosen.registers else {})
    return compile_kernel(ahead_kernel(), arguments, 90, options).metadata.shared


def compile_pack(q: torch.Tensor, mask: ProductionMask, capability: int) -> int:
    """Bytes of shared memory of the kernel of tiny sequences, as many call it."""
    many = torch.empty(MANY * TINY, 2, q.size(2), dtype=q.dtype, device="meta")
    chosen = choose_schedule(many, many, TINY, mask, MANY)
    x, offsets = torch.empty(16, 2, q.size(2), dtype=q.dtype), torch.empty(4, dtype=torch.int64)
    flags = (True, True, True, False)
    constants = pack_constants(Call(x, x, x, offsets, TINY, mask), x, flags, "ieee", chosen)
    numbers = pack_numbers((3, 20, 1.0), 3, chosen, 1.0)
    names = (parameter.name for parameter in packed_attention_kernel.params)
    values = (x, x, x, x, offsets, mask.num_targets, x, *numbers, *constants)
    arguments = dict(zip(names, values, strict=True))
    options = {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
    return compile_kernel(packed_attention_kernel, arguments, capability, options).metadata.shared


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*map(int, sys.argv[1:]))))
