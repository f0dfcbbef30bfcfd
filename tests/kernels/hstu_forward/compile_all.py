"""Compiles the forward's kernels in forms that their launcher chooses, for a GPU that need not be there.

    python -m tests.kernels.hstu_forward.compile_all CAPABILITY

Writes a JSON object: a form's name to its shared memory in bytes. The launcher itself runs, with kernels in
whose place stands what compiles them for the arguments that they are launched with. In a process of its own,
since the tests interpret the kernels, which is decided when they are imported.
"""

from __future__ import annotations

import json
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from configs import load_case
from kernels.hstu_forward import HSTUForward, Settings, model, triton_launch
from reference.build import build_hstu

TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
}
OPTIONS = ("num_warps", "num_stages", "launch_pdl", "maxnreg")


class Compiling:
    """Stands where a kernel is launched, and compiles it, once for each set of constants."""

    def __init__(self, kernel, capability: int) -> None:
        self.kernel, self.capability = kernel, capability
        self.made: dict[str, object] = {}

    def __getitem__(self, grid):
        return self.compile

    def compile(self, *arguments, **named) -> None:
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        key = f"{options} {named}"
        if key in self.made:
            return
        signature, constants, attributes = {}, {}, {}
        for index, parameter in enumerate(self.kernel.params):
            if parameter.is_constexpr:
                signature[parameter.name], constants[(index,)] = (
                    "constexpr",
                    self.constant(parameter.name, named, arguments, index),
                )
            elif isinstance(value := arguments[index], torch.Tensor):
                signature[parameter.name] = f"*{TYPES[value.dtype]}"
                attributes[(index,)] = [["tt.divisibility", 16]]
            else:
                signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
        self.made[key] = triton.compile(
            ASTSource(self.kernel, signature, constexprs=constants, attrs=attributes),
            target=GPUTarget("cuda", self.capability, 32),
            options=options,
        )

    @staticmethod
    def constant(name: str, named: dict, arguments: tuple, index: int) -> object:
        return named[name] if name in named else arguments[index]


KERNELS = ("embed_kernel", "block_kernel", "project_kernel", "attention_kernel", "output_kernel")
# D, heads, whether rows are many, type, dot precision.
FORMS = (
    (50, 2, False, torch.float32, "fp16x3"),
    (50, 2, True, torch.float32, "fp16x3"),
    (50, 2, True, torch.float32, "fp16x3, attention fp16"),
    (50, 2, True, torch.bfloat16, "ieee"),
    (256, 4, True, torch.float32, "fp16x3"),
    (256, 4, True, torch.float32, "fp16"),
    (256, 4, True, torch.bfloat16, "ieee"),
)


def forward_for(dim: int, heads: int, dtype: torch.dtype, dot: str) -> HSTUForward:
    """A model of two blocks, the first and the last."""
    config = load_case("hstu_ml1m_large").model
    size = dim // heads
    sizes = {"item_embedding_dim": dim, "num_heads": heads, "attention_dim": size, "linear_dim": size}
    built = build_hstu(config.model_copy(update={"num_items": 16, "num_blocks": 2, **sizes})).to(dtype)
    return HSTUForward(built.state_dict(), Settings(heads, size, size, built.sequence_width), dot)


def compiled(form: tuple, capability: int) -> dict[str, object]:
    """A form's kernels by name, as triton gives them."""
    dim, heads, is_many, dtype, dot = form
    kernels = {name: getattr(triton_launch, name) for name in KERNELS}
    standing = {name: Compiling(kernel, capability) for name, kernel in kernels.items()}
    for name, stand in standing.items():
        setattr(triton_launch, name, stand)
    longest, sequences = 211, 128 if is_many else 1
    ids = torch.empty(sequences * longest, dtype=torch.int64)
    offsets, times = (
        torch.empty(sequences + 1, dtype=torch.int64),
        torch.empty(sequences, longest, dtype=torch.int64),
    )
    with torch.no_grad():
        forward_for(dim, heads, dtype, dot)(ids, offsets, times, longest)
    for name, kernel in kernels.items():
        setattr(triton_launch, name, kernel)
    return {
        f"{name}, D {dim}, {'many' if is_many else 'few'} rows, {dtype}, {dot}, {number}": made
        for name, stand in standing.items()
        for number, made in enumerate(stand.made.values())
    }


def for_gpu(capability: int) -> None:
    """The launcher's choices as on such a GPU; nothing here asks for one."""
    model.require_triton = lambda x: None
    triton_launch._on_gpu = lambda forward: True
    triton_launch._can_depend = lambda forward: capability >= 90


def main(capability: int) -> dict[str, int]:
    """Bytes of shared memory by name of form."""
    for_gpu(capability)
    made = {}
    for form in FORMS:
        made |= compiled(form, capability)
    return {name: kernel.metadata.shared for name, kernel in made.items()}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(int(sys.argv[1]))))
