"""Faults made by hand in the fused attention and around it: found, and named at the right module.

Those of the plain PyTorch form run anywhere, those of the Triton kernel where there is a GPU.
"""

import pytest
import torch

from kernels.hstu_attention.interface import missing_triton
from tests.parity.fault_runs import ROOT, Fault, assert_found_and_named

EAGER = "kernels/hstu_attention/eager.py"
TRITON = "kernels/hstu_attention/triton_kernel.py"
ATTENTION = "_hstu._attention_layers.0._attn"

PLAIN = {
    "mask_edge": (
        "tripy_jagged",
        Fault(
            "mask_edge",
            EAGER,
            "return index.unsqueeze(1) >= index.unsqueeze(0)",
            "return index.unsqueeze(1) > index.unsqueeze(0)",
            ATTENTION,
        ),
    ),
    "position_bias_off_by_one": (
        "tripy_jagged",
        Fault("position_bias_off_by_one", EAGER, "[mask.width - 1 + ", "[mask.width - 2 + ", ATTENTION),
    ),
    "time_bias_off_by_one": (
        "torch_fused",
        Fault(
            "time_bias_off_by_one",
            EAGER,
            "next_N = own_N[(position + 1)",
            "next_N = own_N[(position + 0)",
            ATTENTION,
        ),
    ),
    "sequences_joined": (
        "tripy_jagged",
        Fault(
            "sequences_joined",
            "tripy_port/fused_attention.py",
            "tp.sum(tp.where(column < row,",
            "tp.sum(tp.where(column + 1 < row,",
            "_hstu",
        ),
    ),
    "rows_shifted": (
        "tripy_jagged",
        Fault(
            "rows_shifted",
            "tripy_port/fused_attention.py",
            "tp.where(is_valid_BN, row_BN + 1, 0)",
            "tp.where(is_valid_BN, row_BN, 0)",
            "_hstu",
        ),
    ),
}

# Rows of up to 200 positions: several blocks, the last of them not full.
KERNEL = {
    fault.name: fault
    for fault in (
        Fault(
            "mask_edge",
            TRITON,
            "rows[:, None] >= cols[None, :]",
            "rows[:, None] > cols[None, :]",
            ATTENTION,
            "hstu_ml1m",
        ),
        Fault(
            "block_boundary",
            TRITON,
            "end = tl.minimum(start_m + BLOCK_M, length)",
            "end = tl.minimum(start_m + BLOCK_M - BLOCK_N, length)",
            ATTENTION,
            "hstu_ml1m",
        ),
        Fault("bias_off_by_one", TRITON, "last = width - 1", "last = width - 2", ATTENTION, "hstu_ml1m"),
        Fault(
            "last_partial_block",
            TRITON,
            "    high = end\n",
            "    high = end // BLOCK_N * BLOCK_N\n",
            ATTENTION,
            "hstu_ml1m",
        ),
    )
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_fault_of_the_plain_form_is_found_and_named(name, tmp_path):
    runner, fault = PLAIN[name]
    assert_found_and_named(fault, tmp_path, runner)


@pytest.mark.skipif(bool(missing_triton()), reason=missing_triton() or "triton is there")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the Triton kernel needs a CUDA device")
@pytest.mark.parametrize("name", KERNEL)
def test_a_fault_of_the_kernel_is_found_and_named(name, tmp_path):
    assert_found_and_named(KERNEL[name], tmp_path, "torch_fused")


@pytest.mark.parametrize("name", KERNEL)
def test_a_fault_of_the_kernel_can_be_made(name):
    """Without a GPU, too, it is seen when the kernel has changed and its faults have not."""
    fault = KERNEL[name]
    assert (ROOT / fault.file).read_text().count(fault.old) == 1
