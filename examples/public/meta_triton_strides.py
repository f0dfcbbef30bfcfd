"""Meta's Triton attention with tensor descriptors, on slices of one projection and on contiguous tensors.

Any machine shows the memory that the descriptors name; a GPU of compute capability 9.0 shows the results too.
"""

from types import ModuleType
from typing import Any

import torch
from checkout import public_module

LENGTH, HEADS, WIDTH = 512, 4, 128
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OFFSETS = torch.tensor([0, LENGTH], device=DEVICE)


class Launch:
    """Takes the kernel's place and has its arguments."""

    def __init__(self) -> None:
        self.arguments: dict[str, Any] = {}

    def __getitem__(self, grid: object) -> "Launch":
        return self

    def __call__(self, **arguments: Any) -> None:
        self.arguments = arguments


def attention(public: ModuleType, operands: list[torch.Tensor], enable_tma: bool) -> torch.Tensor:
    """The public attention of one sequence."""
    return public.triton_hstu_mha(LENGTH, WIDTH**-0.5, *operands, OFFSETS, enable_tma=enable_tma)


def memory_of_q(public: ModuleType, operands: list[torch.Tensor]) -> torch.Tensor:
    """The numbers (length, heads * width) that the kernel reads as q through its descriptor."""
    kernel, launch = public._hstu_attn_fwd, Launch()
    public._hstu_attn_fwd = launch
    attention(public, operands, enable_tma=True)
    public._hstu_attn_fwd = kernel
    descriptor = launch.arguments["Q"]
    return torch.as_strided(descriptor.base, descriptor.shape, descriptor.strides)


if __name__ == "__main__":
    module = "generative_recommenders.ops.triton.triton_hstu_attention"
    source = "https://github.com/meta-recsys/generative-recommenders"
    public = public_module(module, source, ".", "fbgemm_gpu", "triton")
    projection = torch.randn(LENGTH, 4 * HEADS * WIDTH, device=DEVICE, dtype=torch.bfloat16)
    # The public layer's order: u, v, q, k.
    _, v, q, k = (part.view(LENGTH, HEADS, WIDTH) for part in projection.split(HEADS * WIDTH, dim=1))
    slices = [q, k, v]
    for name, operands in (("slices", slices), ("contiguous", [part.contiguous() for part in slices])):
        read, rows = memory_of_q(public, operands), operands[0].flatten(1)
        others = int((read != rows).any(dim=1).sum())
        apart = f"rows of q begin every {operands[0].stride(0)} numbers, in the descriptor {read.stride(0)}"
        print(f"{name}: {apart}; {others} of {LENGTH} rows are others")
        if DEVICE == "cuda" and torch.cuda.get_device_capability()[0] >= 9:
            expected = attention(public, slices, enable_tma=False).double()
            error = (attention(public, operands, enable_tma=True).double() - expected).norm()
            difference = error / expected.norm()
            print(f"{name}: relative difference to the kernel without descriptors {difference:.2g}")
