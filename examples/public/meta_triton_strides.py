"""Meta's Triton attention with tensor descriptors, on slices and on contiguous tensors. It needs a GPU."""

import sys

import torch
from checkout import public_module

LENGTH, HEADS, WIDTH = 512, 4, 128

if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("no GPU: tensor descriptors need compute capability 9.0 or higher", file=sys.stderr)
        sys.exit(2)
    module = "generative_recommenders.ops.triton.triton_hstu_attention"
    source = "https://github.com/meta-recsys/generative-recommenders"
    triton_hstu_mha = public_module(module, source, ".", "fbgemm_gpu", "triton").triton_hstu_mha
    projection = torch.randn(LENGTH, 3 * HEADS * WIDTH, device="cuda", dtype=torch.bfloat16)
    slices = [part.view(LENGTH, HEADS, WIDTH) for part in projection.split(HEADS * WIDTH, dim=1)]
    offsets = torch.tensor([0, LENGTH], device="cuda")
    expected = triton_hstu_mha(LENGTH, WIDTH**-0.5, *slices, offsets, enable_tma=False).double()
    for name, operands in (("slices", slices), ("contiguous", [part.contiguous() for part in slices])):
        result = triton_hstu_mha(LENGTH, WIDTH**-0.5, *operands, offsets, enable_tma=True).double()
        error = (result - expected).norm() / expected.norm()
        print(f"{name}: relative difference to the kernel without descriptors {error:.2g}")
