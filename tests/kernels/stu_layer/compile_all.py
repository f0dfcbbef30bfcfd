"""Compiles the layers' kernels in forms that their launcher chooses, for a GPU that need not be there.

    python -m tests.kernels.stu_layer.compile_all CAPABILITY LAST

Writes a JSON object: a form's name to its shared memory in bytes. It needs a process of its own: tests
interpret the kernels, and an import decides between both.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from kernels.hstu_attention.new_rows import Appended
from kernels.stu_layer import Parameters, Sizes, triton_launch
from kernels.stu_layer.parameters import shapes_of
from tests.kernels.triton_compiling import compile_kernel

# Type, D, sizes.
FORMS = (
    (torch.float32, 50, Sizes(2, 25, 25)),
    (torch.float16, 6000, Sizes(4, 64, 64, use_group_norm=True)),
    (torch.bfloat16, 512, Sizes(4, 128, 128)),
)


class Compiling:
    """Stands in for a kernel, and compiles it in place of a launch."""

    def __init__(self, kernel: Any, capability: int) -> None:
        self.kernel, self.capability, self.compiled = kernel, capability, None

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.compile

    def compile(self, *arguments: object, num_warps: int, **named: object) -> None:
        values = dict(zip((p.name for p in self.kernel.params), arguments, strict=False)) | named
        self.compiled = compile_kernel(self.kernel, values, self.capability, {"num_warps": num_warps})


def main(capability: int, last: int) -> dict[str, int]:
    """Bytes of shared memory by name of kernel, in the `last` forms; 0 means all."""
    shared = {}
    for dtype, width, sizes in FORMS[-last:]:
        parameters = Parameters(
            *(torch.empty(shape, dtype=dtype) for shape in shapes_of(sizes, width).values())
        )
        x = torch.empty(8, width, dtype=dtype)
        offsets = torch.empty(3, dtype=torch.int64)
        cached = x.new_empty(2, 6, sizes.gates + sizes.factors)
        uvqk, factor = x.new_empty(8, sizes.projected), x.new_empty(8, 3 * sizes.gates)
        for name, arguments in (
            ("norm", (x, parameters.input_norm_weight, parameters.input_norm_bias, x)),
            (
                "gate",
                (
                    uvqk[:, : sizes.gates],
                    factor[:, sizes.gates : 2 * sizes.gates],
                    parameters.output_norm_weight,
                    parameters.output_norm_bias,
                    sizes.norm_groups,
                    factor,
                ),
            ),
            ("keep", (uvqk, offsets, Appended(offsets, 6, 4), sizes, cached)),
        ):
            kernel = getattr(triton_launch, f"{name}_kernel")
            standing = Compiling(kernel, capability)
            setattr(triton_launch, f"{name}_kernel", standing)
            getattr(triton_launch, name)(*arguments)
            setattr(triton_launch, f"{name}_kernel", kernel)
            shared[f"{name}, {dtype}, D {width}"] = standing.compiled.metadata.shared
    return shared


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*map(int, sys.argv[1:]))))
