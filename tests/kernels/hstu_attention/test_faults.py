"""Faults of the attention kernel, made in its source, and seen by the verdict that its tests use."""

from __future__ import annotations

import functools

import pytest
import torch

from kernels.hstu_attention.layout import Call, layout_of
from tests.kernels.hstu_attention.attention_cases import CASES, verdict, with_fault
from tests.kernels.marks import needs_triton

# Each in the kernel's source, with the case that shows it.
FAULTS = {
    "mask edge: the diagonal": (
        "causal",
        "return rows[:, None] >= cols[None, :]",
        "return rows[:, None] > cols[None, :]",
    ),
    "mask edge: the window": ("window", "bitcast=True) <= window", "bitcast=True) < window"),
    "mask edge: the window beside other masks": (
        "everything",
        "bitcast=True) < window",
        "bitcast=True) <= window",
    ),
    "mask edge: targets see each other": (
        "targets",
        "row_position = tl.minimum(row_position, last_position)",
        "row_position = row_position",
    ),
    "mask edge: contextual rows": ("contextual rows", "(rows < contextual)", "(rows < contextual - 1)"),
    "mask edge: contextual rows count as one": (
        "everything",
        "tl.maximum(rows - merged, 0)",
        "tl.maximum(rows - contextual, 0)",
    ),
    "block boundary: a cut block taken whole": (
        "causal",
        "cut = cut // BLOCK_N * BLOCK_N",
        "cut = (cut + BLOCK_N - 1) // BLOCK_N * BLOCK_N + BLOCK_N",
    ),
    "block boundary: the window's first block": (
        "window wider than a block",
        "low = tl.where(first > merged, first // BLOCK_N * BLOCK_N, 0)",
        "low = tl.where(first > merged, (first // BLOCK_N + 1) * BLOCK_N, 0)",
    ),
    "block boundary: targets' own block twice": (
        "targets",
        "own = tl.maximum(start_m // BLOCK_N, (high + BLOCK_N - 1) // BLOCK_N) * BLOCK_N",
        "own = start_m // BLOCK_N * BLOCK_N",
    ),
    "last partial block left out": (
        "causal",
        "    high = end\n",
        "    high = end // BLOCK_N * BLOCK_N\n",
    ),
    "contextual rows without the history behind their block": (
        "contextual rows",
        "high = tl.maximum(first_target, end)",
        "high = end",
    ),
    "contextual rows' block left out": (
        "contextual rows",
        "block = (block + 1) % num_blocks",
        "block = tl.minimum(block + 1, num_blocks - 1)",
    ),
    "the second of the cut ranges shifted": (
        "everything",
        "low, cut - second, own - third",
        "low, cut - second + BLOCK_N, own - third",
    ),
    "the third of the cut ranges left out": (
        "targets",
        "stop = third + tl.maximum(end - own, 0)",
        "stop = third",
    ),
    "bias off by one": (
        "research, positions alone",
        "(last - tl.minimum(rows, last))",
        "(last - 1 - tl.minimum(rows, last - 1))",
    ),
    "bias: the row's own time": (
        "research, K is not V",
        "tl.minimum(rows + 1, count - 1)",
        "tl.minimum(rows, count - 1)",
    ),
    "bias: a bucket's first second": ("research, K is not V", "pattern >= entry", "pattern > entry"),
    "bias: time cut to 32 bits": (
        "research, K is not V",
        "narrow = (span >= 0) & (span < 0x7FFFFFFF)",
        "narrow = span == span",
    ),
    "a row's scale": ("everything", "attn_scale + query_start + rows", "attn_scale + rows"),
}


@needs_triton
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault, tmp_path, monkeypatch):
    name, old, new = FAULTS[fault]
    launcher = with_fault(old, new, tmp_path, monkeypatch)
    # A block of rows inside a block of columns and the other way round.
    shapes = [launcher.Schedule(block, 96 - block, num_warps=4, num_stages=1) for block in (32, 64)]
    if "own block" in fault:
        shapes = [launcher.Schedule(16, 64, num_warps=4, num_stages=1)]

    def launched(q, k, v, offsets, longest, mask, cut):
        call = Call(q, k, v, offsets, longest, mask)
        # Rows that nobody writes must not show an earlier, right result.
        out = torch.full_like(v, float("nan"), memory_format=torch.contiguous_format)
        return launcher.launch_call(call, layout_of(call), "ieee", out, cut)

    runs = [functools.partial(launched, cut=cut) for cut in shapes]
    assert not all(verdict(CASES[name], "fp32", run).passed for run in runs)
