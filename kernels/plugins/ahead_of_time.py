"""The kernels compiled ahead of time for TensorRT: PTX and its launch. Compiling needs no GPU.

This module imports torch and triton. An engine with the kernel needs neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.hstu_attention.buckets import bucket_table
from kernels.hstu_attention.masks import ProductionMask, ResearchMask
from kernels.hstu_attention.triton_launch import Schedule, choose_schedule, padded_dim
from kernels.plugins.entry_kernel import (
    hstu_attention_entry,
    stu_attention_entry,
    stu_gate_entry,
    stu_norm_entry,
)
from kernels.plugins.schema import (
    HSTUAttentionSettings,
    STUAttentionSettings,
    STUGateSettings,
    STUNormSettings,
)
from kernels.stu_layer.triton_launch import block_of

CAPABILITIES = (80, 90, 100)
"""Compute capabilities under test: A100, H100 and H200, B200."""

_TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.int64: "i64",
}
_MOST_SHARED = 48 << 10
"""Bytes of shared memory of a launch without a raised limit; TensorRT is not known to raise it."""
_THREADS_PER_WARP = 32


@dataclass(frozen=True)
class AttentionShape:
    """Types and constant extents of a call.

    Attributes:
        dtype: dtype of q, k, v, the weights or scales, and the result.
        offsets_dtype: torch.int32 or torch.int64.
        heads, k_dim, v_dim: H, K, V.
        width: W of the position weights; in production an assumed length of rows, for the choice of the
            schedule.
        num_buckets: number of the last time bucket; 0 in production.
    """

    dtype: torch.dtype
    offsets_dtype: torch.dtype
    heads: int
    k_dim: int
    v_dim: int
    width: int
    num_buckets: int = 0


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel and its launch.

    Its arguments are pointers to the inputs, int32 numbers, and the pointer to the output.

    * Attention: seven inputs; B, N and the number of blocks of `block_m` rows in N. The grid has blocks * B *
      `programs_per_block` programs.
    * Rows of a layer: the number of groups with a norm of their own. The grid has a program for `block_m` of
      them.
    """

    name: str
    ptx: str
    cubin: bytes
    threads: int
    shared: int
    block_m: int
    programs_per_block: int


def compile_attention(
    shape: AttentionShape,
    settings: HSTUAttentionSettings | STUAttentionSettings,
    dot_precision: str,
    capability: int,
) -> CompiledKernel:
    """The attention with one of the masks; see `compile_entry`.

    Args:
        shape: types and extents of the call.
        settings: settings of the research or of the production mask.
        dot_precision: as in `kernels.hstu_attention.hstu_attention`.
        capability: 10 * major + minor of the GPU's compute capability.
    """
    return compile_entry(entry_of(shape, settings, dot_precision), capability)


def compile_entry(entry: Entry, capability: int) -> CompiledKernel:
    """A kernel, compiled for a GPU that this machine may lack.

    Raises:
        ValueError: the kernel needs more shared memory than a plugin's kernel gets.
    """
    schedule, constants, types = entry.schedule, entry.constants, entry.types
    names = entry.kernel.arg_names
    source = ASTSource(
        entry.kernel,
        {name: "constexpr" if name in constants else types.get(name, "i32") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        # TensorRT aligns tensors to 256 bytes.
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in types},
    )
    target = GPUTarget("cuda", capability, _THREADS_PER_WARP)
    # A pipeline of fewer stages takes less shared memory and gives the same numbers.
    for stages in range(schedule.num_stages, 0, -1):
        options = {"num_warps": schedule.num_warps, "num_stages": stages}
        compiled = triton.compile(source, target=target, options=options)
        if compiled.metadata.shared <= _MOST_SHARED:
            break
    else:
        raise ValueError(
            f"{entry.subject} take "
            f"{compiled.metadata.shared} bytes of shared memory, "
            f"more than the {_MOST_SHARED} of a plugin's kernel"
        )
    return CompiledKernel(
        name=compiled.metadata.name,
        ptx=without_scratch(compiled.asm["ptx"], compiled.metadata, len(names) - len(constants)),
        cubin=compiled.asm["cubin"],
        threads=compiled.metadata.num_warps * _THREADS_PER_WARP,
        shared=compiled.metadata.shared,
        block_m=schedule.block_m,
        programs_per_block=entry.programs_per_block,
    )


@dataclass(frozen=True)
class Entry:
    """A kernel that TensorRT can launch, before it is compiled.

    Attributes:
        kernel: function of `entry_kernel`.
        schedule: block sizes and compiler options.
        constants: constants by name.
        types: Triton's types of the pointers by name.
        subject: the sizes in words, for messages.
        programs_per_block: see `CompiledKernel`.
    """

    kernel: Any
    schedule: Schedule
    constants: dict[str, Any]
    types: dict[str, str]
    subject: str
    programs_per_block: int = 1


def entry_of(
    shape: AttentionShape, settings: HSTUAttentionSettings | STUAttentionSettings, dot_precision: str
) -> Entry:
    """The kernel of the settings' mask; arguments as for `compile_attention`."""
    if isinstance(settings, HSTUAttentionSettings):
        kernel, mask, constants, types = _research(shape, settings)
    else:
        kernel, mask, constants, types = _production(shape, settings)
    schedule = _schedule(shape, mask)
    return Entry(
        kernel,
        schedule,
        _constants(shape, schedule, dot_precision) | constants,
        {
            **dict.fromkeys(("q", "k", "v", "out"), _pointer_to(shape.dtype)),
            "offsets": _pointer_to(shape.offsets_dtype),
            **types,
        },
        f"heads of {shape.k_dim} and {shape.v_dim} in {shape.dtype}",
        shape.heads // schedule.heads,
    )


def entry_of_rows(dtype: torch.dtype, width: int, settings: STUNormSettings | STUGateSettings) -> Entry:
    """The norm of rows of `width` elements, or the gate of two such rows, all in one type."""
    groups = (settings.norm_groups or 1) if isinstance(settings, STUGateSettings) else 1
    block_m, padded, warps = block_of(width // groups)
    constants = {"EPS": settings.eps, "BLOCK_M": block_m}
    if isinstance(settings, STUGateSettings):
        kernel, inputs = stu_gate_entry, ("u", "a", "weight", "bias")
        constants |= {"WIDTH": width, "GROUPS": groups, "SIZE": width // groups, "BLOCK_S": padded}
        constants["IS_GROUP_NORM"] = settings.norm_groups > 0
    else:
        kernel, inputs = stu_norm_entry, ("x", "weight", "bias")
        constants |= {"D": width, "BLOCK_D": padded}
    return Entry(
        kernel,
        Schedule(block_m, padded, num_warps=warps, num_stages=1),
        constants,
        dict.fromkeys((*inputs, "out"), _pointer_to(dtype)),
        f"rows of {width} in {dtype}",
    )


class _OfMask(NamedTuple):
    """A mask's part of an entry: its own constants and types, and the mask for `choose_schedule`."""

    kernel: Any
    mask: ResearchMask | ProductionMask
    constants: dict[str, Any]
    types: dict[str, str]


def _research(shape: AttentionShape, settings: HSTUAttentionSettings) -> _OfMask:
    table = bucket_table(shape.num_buckets, settings.bucket_divisor)
    assert table.entries.dtype is torch.int64, "the entry kernel reads 64-bit entries"
    weights = torch.empty(2 * shape.width - 1, dtype=shape.dtype, device="meta")
    constants = {
        "WIDTH": shape.width,
        "SCALE": 1.0 / settings.divisor,
        "BUCKET_SHIFT": table.shift,
        "TABLE_ADDRESS": _address_of(table.entries.tolist()),
    }
    value = _pointer_to(shape.dtype)
    types = {"timestamps": "*i64", "position_weights": value, "time_weights": value}
    return _OfMask(hstu_attention_entry, ResearchMask(weights, settings.divisor), constants, types)


def _production(shape: AttentionShape, settings: STUAttentionSettings) -> _OfMask:
    constants = {
        "ALPHA": settings.alpha,
        "WINDOW": settings.max_attn_len,
        "CONTEXTUAL": settings.contextual_seq_len,
        "HAS_SCALE": settings.has_attn_scale,
    }
    types = {
        "num_targets": _pointer_to(shape.offsets_dtype),
        "attn_scale": _pointer_to(shape.dtype),
        "padded": "*i32",
    }
    return _OfMask(stu_attention_entry, ProductionMask(settings.alpha, float(shape.width)), constants, types)


def _pointer_to(dtype: torch.dtype) -> str:
    return f"*{_TYPES[dtype]}"


def _schedule(shape: AttentionShape, mask: ResearchMask | ProductionMask) -> Schedule:
    q, v = (
        torch.empty(0, shape.heads, dim, dtype=shape.dtype, device="meta")
        for dim in (shape.k_dim, shape.v_dim)
    )
    # The host makes descriptors for the copy engine, and TensorRT makes none.
    return replace(choose_schedule(q, v, shape.width, mask), use_tma=False)


def _constants(shape: AttentionShape, schedule: Schedule, dot_precision: str) -> dict[str, Any]:
    return {
        "NUM_HEADS": shape.heads,
        "K_DIM": shape.k_dim,
        "V_DIM": shape.v_dim,
        "BLOCK_K": padded_dim(shape.k_dim),
        "BLOCK_V": padded_dim(shape.v_dim),
        "BLOCK_M": schedule.block_m,
        "BLOCK_N": schedule.block_n,
        "HEADS": schedule.heads,
        "GROUP": schedule.group,
        "DOT": dot_precision,
        "SIGMOID": schedule.sigmoid,
    }


def _address_of(entries: list[int]) -> str:
    """Assembly that stores a table of 64-bit integers in the module and puts its address into $0."""
    table = f".global .align 16 .b64 time_buckets[{len(entries)}] = {{{', '.join(map(str, entries))}}};"
    return f"{{ {table} mov.u64 $0, time_buckets; }}"


def without_scratch(ptx: str, metadata: Any, arguments: int) -> str:
    """The PTX without the pointers to scratch memory that Triton appends to a kernel's arguments.

    Triton's launcher passes these pointers and TensorRT does not.

    Args:
        ptx: PTX of one kernel.
        metadata: Triton's metadata of the kernel.
        arguments: number of the kernel's own arguments.

    Raises:
        ValueError: the kernel uses scratch memory.
    """
    scratch = [getattr(metadata, f"{kind}_scratch_size", 0) for kind in ("global", "profile")]
    head, opening, rest = ptx.partition(f".entry {metadata.name}(")
    parameters, closing, body = rest.partition(")")
    own, extra = parameters.split(",")[:arguments], parameters.split(",")[arguments:]
    used = [name for name in re.findall(r"\w+_param_\d+", ",".join(extra)) if re.search(rf"\b{name}\b", body)]
    if any(scratch) or used or not opening or len(own) != arguments:
        raise ValueError(
            f"{metadata.name} uses scratch memory ({scratch}, {used}), which TensorRT does not provide"
        )
    return f"{head}{opening}{','.join(own)}\n{closing}{body}"
