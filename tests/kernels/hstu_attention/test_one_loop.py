"""The attention kernel with one loop over all blocks of columns: its masks, and faults of it."""

from __future__ import annotations

import pytest
import torch

from kernels.hstu_attention import ProductionMask, Schedule, hstu_attention
from kernels.hstu_attention.layout import Call, layout_of
from kernels.hstu_attention.schedule_checks import misfit
from tests.kernels.hstu_attention.attention_cases import (
    CASES,
    Case,
    Run,
    before_garbage,
    production,
    verdict,
    with_fault,
)
from tests.kernels.marks import DEVICE, GPU, needs_triton

MASKS = {
    "causal": production(),
    "targets": production(has_targets=True),
    "window": production(window=20),
    "window wider than a block": production(window=100),
    "targets and window": production(True, True, 40),
}
# Blocks of rows that are several of columns, as many, and a part of one.
BLOCKS = [(64, 32), (32, 32), (16, 64)]
BEHIND = 64
FAULTS = {
    "blocks in front of the whole ones taken whole": (
        "window wider than a block",
        "(start_n < whole) | ",
        "",
    ),
    "blocks behind the whole ones taken whole": ("causal", " | (start_n >= cut)", ""),
    "the block at the sequence's end without masked loads": (
        "causal",
        "inside_stop = tl.where(last + BLOCK_N > length, stop - BLOCK_N, stop)",
        "inside_stop = stop",
    ),
    "the block at the sequence's end left out": ("causal", "if inside_stop < stop:", "if inside_stop < 0:"),
    "the targets' own left out": (
        "targets",
        "stop = second + tl.maximum((end - own + BLOCK_N - 1) // BLOCK_N * BLOCK_N, 0)",
        "stop = second",
    ),
    "the window's end left out": (
        "window",
        "second = tl.maximum((high - low + BLOCK_N - 1) // BLOCK_N * BLOCK_N, 0)",
        "second = tl.maximum((high - low) // BLOCK_N * BLOCK_N, 0)",
    ),
    "the targets' own elsewhere": (
        "targets",
        "0, inside_stop, second, stop, low, own - second, 0, whole, cut,",
        "0, inside_stop, second, stop, low, own - second - BLOCK_N, 0, whole, cut,",
    ),
}
pytestmark = needs_triton


def in_one_loop(launcher, rows: int, columns: int) -> Run:
    """The kernel, whose rows that nobody writes are NaN."""

    def run(q, k, v, offsets, longest, mask):
        schedule = launcher.Schedule(rows, columns, num_warps=4, num_stages=2, group=3, one_loop=True)
        call = Call(q, k, v, offsets, longest, mask)
        assert misfit(schedule, call) == ""
        out = torch.full_like(v, float("nan"), memory_format=torch.contiguous_format)
        return launcher.launch_call(
            call, layout_of(call), "ieee", out, launcher.with_descriptors(schedule, k, v)
        )

    return run


@pytest.mark.sampled
@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_mask_is_right_beside_a_sequence_of_nan(name, blocks, precision):
    from kernels.hstu_attention import triton_launch

    run = before_garbage(in_one_loop(triton_launch, *blocks), BEHIND)
    actual = verdict(Case(2, 32, 32, MASKS[name]), precision, run)
    assert actual.passed, actual.reason


@pytest.mark.parametrize("name", ["research, K is not V", "research, positions alone"])
def test_a_bias_is_right(name):
    from kernels.hstu_attention import triton_launch

    actual = verdict(CASES[name], "fp32", in_one_loop(triton_launch, 32, 32))
    assert actual.passed, actual.reason


@pytest.mark.skipif(not GPU, reason="no CUDA device")
@pytest.mark.parametrize("window", [0, 20, 256, 1024])
@pytest.mark.parametrize("targets", [False, True])
@pytest.mark.parametrize(
    ("size", "rows", "columns", "stages"), [(128, 64, 64, 2), (128, 64, 32, 3), (64, 64, 64, 2)]
)
def test_copies_by_the_engine_are_right(window, targets, size, rows, columns, stages):
    """Sequences of many blocks, whose last ones are full, and are not."""

    def run(*arguments):
        schedule = Schedule(rows, columns, 4, stages, 16, "half", use_tma=True, one_loop=True)
        return hstu_attention(*arguments, schedule=schedule)

    case = Case(2, size, size, production(targets, False, window), (5, 0, 1, 1300, 640, 641, 703))
    actual = verdict(case, "bf16", before_garbage(run, BEHIND))
    assert actual.passed, actual.reason


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault, tmp_path, monkeypatch):
    name, old, new = FAULTS[fault]
    launcher = with_fault(old, new, tmp_path, monkeypatch)
    runs = [before_garbage(in_one_loop(launcher, *blocks), BEHIND) for blocks in BLOCKS]
    assert not all(verdict(Case(2, 32, 32, MASKS[name]), "fp32", run).passed for run in runs)


def test_contextual_rows_and_shared_columns_need_two_loops():
    q, offsets = torch.zeros(4, 2, 32, device=DEVICE), torch.tensor([0, 4], device=DEVICE)
    schedule = Schedule(32, 32, 4, 1, one_loop=True)
    for mask, other, reason in (
        (ProductionMask(1.0, 4.0, contextual_seq_len=1), schedule, "with contextual rows"),
        (ProductionMask(1.0, 4.0), Schedule(32, 32, 4, 1, splits=2, one_loop=True), "with packed or splits"),
    ):
        with pytest.raises(ValueError, match=f"one_loop=True: use False {reason}"):
            hstu_attention(q, q, q, offsets, 4, mask, schedule=other, backend="triton")
