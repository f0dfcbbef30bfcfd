"""Compiles the forward's kernels in forms that their launcher chooses, for a GPU that need not be there.

    python -m tests.kernels.hstu_forward.compile_all CAPABILITY LAST

Writes a JSON object: a form's name to its shared memory in bytes. The launcher itself runs, and stand-ins
for the kernels compile them for the arguments of a launch. It needs a process of its own: tests interpret
the kernels, and an import decides between both.
"""

from __future__ import annotations

import json
import sys

import torch

from configs import load_case
from kernels.hstu_forward import (
    HSTUForward,
    Settings,
    gluon_launch,
    launch_arguments,
    model,
    tiles,
    triton_launch,
    triton_launch_wide,
)
from reference.build import build_hstu
from tests.kernels.triton_compiling import compile_kernel

OPTIONS = ("num_warps", "num_stages", "launch_pdl", "maxnreg")


class Compiling:
    """Stands in for a kernel, and compiles it once for each set of constants in place of a launch."""

    def __init__(self, kernel, capability: int) -> None:
        self.kernel, self.capability = kernel, capability
        self.compiled: dict[str, object] = {}

    def __getitem__(self, grid):
        return self.compile

    def compile(self, *arguments, **named) -> None:
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        key = f"{options} {named}"
        if key in self.compiled:
            return
        parameters = (parameter.name for parameter in self.kernel.params)
        # Constants come by name behind the arguments.
        values = dict(zip(parameters, arguments, strict=False)) | named
        self.compiled[key] = compile_kernel(self.kernel, values, self.capability, options)


KERNELS = (
    (triton_launch, "embed_kernel"),
    (triton_launch, "block_kernel"),
    (triton_launch_wide, "project_kernel"),
    (triton_launch_wide, "attention_kernel"),
    (triton_launch_wide, "output_kernel"),
    (triton_launch_wide, "states_kernel"),
    (gluon_launch, "project_kernel"),
    (gluon_launch, "output_kernel"),
)
# D, heads, rows, type, dot precision. A head has D / heads elements. Cached: few new rows behind cached ones.
FORMS = (
    (50, 2, "cached", torch.float32, "fp16x3"),
    (256, 8, "cached", torch.bfloat16, "ieee"),
    (64, 8, "few", torch.float32, "fp16x3"),
    (64, 8, "many", torch.bfloat16, "ieee"),
    (256, 8, "few", torch.float32, "fp16x3"),
    (256, 8, "few", torch.bfloat16, "ieee"),
    (512, 1, "many", torch.float32, "fp16x3"),
    (512, 16, "few", torch.bfloat16, "ieee"),
    (512, 8, "few", torch.float32, "fp16x3"),
    (50, 2, "few", torch.float32, "fp16x3"),
    (50, 2, "many", torch.float32, "fp16x3"),
    (50, 2, "many", torch.float32, "fp16x3, attention fp16"),
    (50, 2, "many", torch.bfloat16, "ieee"),
    (256, 4, "many", torch.float32, "fp16x3"),
    (256, 4, "many", torch.float32, "fp16"),
    (256, 4, "many", torch.bfloat16, "ieee"),
)


def forward_for(dim: int, heads: int, dtype: torch.dtype, dot: str) -> HSTUForward:
    """A model of two blocks, the first and the last."""
    config = load_case("hstu_ml1m_large").model
    size = dim // heads
    sizes = {"item_embedding_dim": dim, "num_heads": heads, "attention_dim": size, "linear_dim": size}
    built = build_hstu(config.model_copy(update={"num_items": 16, "num_blocks": 2, **sizes})).to(dtype)
    return HSTUForward(built.state_dict(), Settings(heads, size, size, built.sequence_width), dot)


def compiled(form: tuple, capability: int) -> dict[str, object]:
    """The compiled kernels of a form by name."""
    dim, heads, rows, dtype, dot = form
    kernels = {place: getattr(*place) for place in KERNELS}
    standing = {place: Compiling(kernel, capability) for place, kernel in kernels.items()}
    for place, stand in standing.items():
        setattr(*place, stand)
    longest, sequences = 211, 128 if rows == "many" else 1
    ids = torch.zeros(sequences * longest, dtype=torch.int64)
    offsets = torch.zeros(sequences + 1, dtype=torch.int64)
    times = torch.zeros(sequences, longest, dtype=torch.int64)
    forward = forward_for(dim, heads, dtype, dot)
    with torch.no_grad():
        if rows == "cached":
            cache = forward.empty_cache(sequences, longest)
            forward.extend(cache, ids[:4], offsets, offsets[1:], times, longest, 4)
        else:
            forward(ids, offsets, times, longest)
    for place, kernel in kernels.items():
        setattr(*place, kernel)
    return {
        f"{module.__name__}.{name}, D {dim}, {rows} rows, {dtype}, {dot}, {number}": kernel
        for (module, name), stand in standing.items()
        for number, kernel in enumerate(stand.compiled.values())
    }


def for_gpu(capability: int) -> None:
    """Make the launcher choose as it does on such a GPU; nothing here needs one."""
    model.require_triton = lambda x: None
    tiles.has_warpgroup_products = lambda parameters: capability == 90
    for module in (launch_arguments, triton_launch, triton_launch_wide):
        module.on_gpu = lambda parameters: True
        module.can_depend = lambda parameters: capability >= 90


def main(capability: int, last: int) -> dict[str, int]:
    """Bytes of shared memory by name of kernel, in the `last` forms; 0 means all."""
    for_gpu(capability)
    kernels = {}
    for form in FORMS[-last:]:
        kernels |= compiled(form, capability)
    return {name: kernel.metadata.shared for name, kernel in kernels.items()}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*map(int, sys.argv[1:]))))
