"""The production plugin's entry kernel, launched with the arguments that TensorRT passes: the bits of the
kernel as PyTorch launches it. Interpreted where there is no GPU, so that what each argument means is seen
there, too.
"""

import pytest
import torch

from tests.kernels.marks import DEVICE, needs_triton
from tests.kernels.plugins.plugin_setup import (
    HEADS,
    K_DIM,
    STU_SETTINGS,
    V_DIM,
    production_mask,
    stu_attention_inputs,
)

pytestmark = needs_triton


@pytest.mark.parametrize("settings", STU_SETTINGS.values(), ids=STU_SETTINGS)
@pytest.mark.parametrize("lengths", [(5, 0, 9, 2), (70, 2, 64)], ids=str)
def test_the_entry_is_the_kernel(lengths, settings):
    from kernels.hstu_attention import triton_launch
    from kernels.plugins.ahead_of_time import AttentionShape, entry_of

    inputs = [x.to(DEVICE) for x in stu_attention_inputs(lengths, torch.float32, settings)]
    q, k, v, offsets, *_, padded = inputs
    longest = padded.numel()
    shape = AttentionShape(torch.float32, torch.int32, HEADS, K_DIM, V_DIM, longest)
    entry = entry_of(shape, settings, "ieee")
    schedule = entry.schedule
    out = torch.full_like(v, float("nan"))
    blocks = -(-longest // schedule.block_m)
    entry.kernel[(blocks * len(lengths) * HEADS // schedule.heads, 1, 1)](
        *inputs,
        len(lengths),
        longest,
        blocks,
        out,
        **entry.constants,
        num_warps=schedule.num_warps,
        num_stages=schedule.num_stages,
    )
    mask = production_mask(inputs, settings)
    expected = triton_launch.launch(q, k, v, offsets, longest, mask, "ieee", schedule)
    assert torch.equal(out, expected)
    assert torch.isfinite(out).all()
