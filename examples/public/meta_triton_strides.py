"""Meta's Triton attention with tensor descriptors, on slices of one projection and on contiguous tensors.

Any machine shows the memory that the descriptors name. A GPU of compute capability 9.0 shows the results too,
and those of the public layer, which makes the slices itself.
"""

import importlib
from types import ModuleType
from typing import Any

import torch
from checkout import public_module

OPERATORS = "generative_recommenders.ops.triton"
LENGTH, HEADS, WIDTH = 512, 4, 128
SCALE = WIDTH**-0.5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HOPPER = DEVICE == "cuda" and torch.cuda.get_device_capability()[0] == 9
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
    return public.triton_hstu_mha(LENGTH, SCALE, *operands, OFFSETS, enable_tma=enable_tma)


def float64_attention(operands: list[torch.Tensor]) -> torch.Tensor:
    """The same by its formula: silu of the scaled products over the length, for no later row."""
    q, k, v = (part.double() for part in operands)
    weights = torch.nn.functional.silu(torch.einsum("nhd,mhd->hnm", q, k) * SCALE) / LENGTH
    return torch.einsum("hnm,mhd->nhd", weights.tril(), v)


def layer(weight: torch.Tensor, enable_tma: bool | None) -> torch.Tensor:
    """The attention in the public layer.

    Args:
        weight: The projection of u, v, q and k (width of a row, 4 * heads * width of a head).
        enable_tma: As in the layer; None is its default.
    """
    public = importlib.import_module(f"{OPERATORS}.triton_hstu_preprocess_and_attention")
    torch.manual_seed(0)
    rows = torch.randn(LENGTH, weight.shape[0]).to(weight)
    return public.triton_hstu_preprocess_and_attention(
        x=rows,
        norm_weight=torch.ones_like(rows[0]),
        norm_bias=torch.zeros_like(rows[0]),
        norm_eps=1e-6,
        num_heads=HEADS,
        attn_dim=WIDTH,
        hidden_dim=WIDTH,
        uvqk_weight=weight,
        uvqk_bias=torch.zeros_like(weight[0]),
        max_seq_len=LENGTH,
        seq_offsets=OFFSETS,
        attn_alpha=SCALE,
        num_targets=None,
        enable_tma=enable_tma,
    )[1]


def memory_of_q(public: ModuleType, operands: list[torch.Tensor]) -> torch.Tensor:
    """The numbers (length, heads * width) that the kernel reads as q through its descriptor."""
    kernel, launch = public._hstu_attn_fwd, Launch()
    public._hstu_attn_fwd = launch
    attention(public, operands, enable_tma=True)
    public._hstu_attn_fwd = kernel
    descriptor = launch.arguments["Q"]
    return torch.as_strided(descriptor.base, descriptor.shape, descriptor.strides)


def difference(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The relative L2 difference."""
    return float((result.double() - expected.double()).norm() / expected.double().norm())


if __name__ == "__main__":
    source = "https://github.com/meta-recsys/generative-recommenders"
    public = public_module(f"{OPERATORS}.triton_hstu_attention", source, ".", "triton")
    projection = torch.randn(LENGTH, 4 * HEADS * WIDTH, device=DEVICE, dtype=torch.bfloat16)
    # The public layer's order: u, v, q, k.
    _, v, q, k = (part.view(LENGTH, HEADS, WIDTH) for part in projection.split(HEADS * WIDTH, dim=1))
    slices = [q, k, v]
    for name, operands in (("slices", slices), ("contiguous", [part.contiguous() for part in slices])):
        read, rows = memory_of_q(public, operands), operands[0].flatten(1)
        others = int((read != rows).any(dim=1).sum())
        apart = f"rows of q begin every {operands[0].stride(0)} numbers, in the descriptor {read.stride(0)}"
        print(f"{name}: {apart}; {others} of {LENGTH} rows are others")
        if HOPPER:
            for words, enable_tma in (("with", True), ("without", False)):
                error = difference(attention(public, operands, enable_tma), float64_attention(operands))
                print(f"{name}: relative error {words} descriptors {error:.2g}")
    if HOPPER:
        weight = torch.randn_like(projection) / LENGTH**0.5
        changed = difference(layer(weight, None), layer(weight, False))
        print(f"layer: its default differs from its result without descriptors by {changed:.2g}")
