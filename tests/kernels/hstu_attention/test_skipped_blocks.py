"""The Triton kernel visits no block of columns that the mask hides from all rows of a block."""

from __future__ import annotations

import pytest
import torch

from kernels.hstu_attention import ProductionMask
from kernels.hstu_attention.eager import visible
from tests.kernels.hstu_attention.attention_cases import with_fault
from tests.kernels.marks import DEVICE, GPU, needs_triton

LENGTH, BLOCK = 230, 32
# Targets, window, contextual rows.
MASKS = {
    "causal": (0, 0, 0),
    "window": (0, 40, 0),
    "targets": (90, 0, 0),
    "targets and window": (90, 40, 0),
    "contextual rows": (0, 0, 3),
    "contextual rows and window": (0, 40, 3),
    "everything": (90, 40, 3),
}
pytestmark = needs_triton


def visited_in_vain(launcher, targets: int, window: int, contextual: int) -> list[int]:
    """Blocks of rows whose result has a NaN from values in blocks of columns that they do not see."""
    generator = torch.Generator().manual_seed(0)
    dtype = torch.float16 if GPU else torch.float32
    q, k, v = (torch.randn(LENGTH, 1, 16, generator=generator).to(DEVICE, dtype) for _ in range(3))
    offsets = torch.tensor([0, LENGTH]).to(DEVICE)
    counts = torch.tensor([targets]).to(DEVICE) if targets else None
    mask = ProductionMask(0.3, 1.0, None, counts, window, contextual)
    seen = visible(mask, 0, LENGTH, q.device)
    schedule = launcher.Schedule(BLOCK, BLOCK, num_warps=4, num_stages=1)
    in_vain = []
    for number, rows in enumerate(seen.split(BLOCK)):
        hidden = torch.cat([~part.any().expand(part.size(1)) for part in rows.split(BLOCK, dim=1)])
        poisoned = v.masked_fill(hidden[:, None, None], float("nan"))
        out = launcher.launch(q, k, poisoned, offsets, LENGTH, mask, "ieee", schedule)
        if not torch.isfinite(out[number * BLOCK : number * BLOCK + len(rows)]).all():
            in_vain.append(number)
    return in_vain


@pytest.mark.parametrize("name", MASKS)
def test_hidden_blocks_are_not_visited(name):
    from kernels.hstu_attention import triton_launch

    assert visited_in_vain(triton_launch, *MASKS[name]) == []


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("window", "low = tl.where(first > merged, first // BLOCK_N * BLOCK_N, 0)", "low = 0"),
        ("targets", "high = tl.maximum(first_target, 0)", "high = end"),
        ("causal", "    high = end\n", "    high = length\n"),
    ],
    ids=["window", "targets", "causal"],
)
def test_a_visit_in_vain_is_seen(name, old, new, tmp_path, monkeypatch):
    assert visited_in_vain(with_fault(old, new, tmp_path, monkeypatch), *MASKS[name])
