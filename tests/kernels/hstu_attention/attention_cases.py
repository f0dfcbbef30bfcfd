"""Inputs of HSTU attention that reach every branch of its kernel, and the verdict on a result.

The rule is the project's (`parity.verdict.rule`): with the float64 oracle of the rounded inputs, the kernel's
error is at most k times that of eager PyTorch in the same precision plus a floor, both derived there from
the precision's round-off and the longest sum. No test has a tolerance of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.nn.functional import pad

from kernels.hstu_attention import ProductionMask, ResearchMask, hstu_attention
from kernels.hstu_attention.buckets import bucket_table
from parity.base.precision import PRECISIONS
from parity.verdict.rule import Verdict, judge
from tests.kernels.marks import DEVICE
from tests.kernels.mutation import mutated

Mask = ResearchMask | ProductionMask
Run = Callable[..., torch.Tensor]

WIDTH = 140
# An empty row, a row of one, full blocks, the last row of a block and the first of the next, partial last
# blocks.
LENGTHS = (5, 0, 1, 130, 64, 65, 140)


@dataclass(frozen=True)
class Case:
    """One call: sizes, and the mask as a function of a generator and the total length."""

    heads: int
    attention_dim: int
    value_dim: int
    mask: Callable[[torch.Generator, int], Mask]
    lengths: tuple[int, ...] = LENGTHS


def bucket_edges(limit: int, num_buckets: int = 128, bucket_divisor: float = 0.301) -> list[int]:
    """The differences up to `limit` at which a bucket begins. Above 2^24 a float32 is an integer: there a
    difference lies on the edge itself and not behind it."""
    edges = (bucket_table(num_buckets, bucket_divisor).entries & 0xFFFFFFFF).unique() + 0x3F800000
    first = edges.clamp(max=0x5F000000).int().view(torch.float32).double().ceil().long()
    return first[first <= limit].tolist()


def timestamps(generator: torch.Generator, sequences: int, width: int) -> torch.Tensor:
    """(B, N): a row's last events lie a bucket's first second before the query time, earlier ones
    anywhere.
    """
    times = torch.randint(0, 10**9, (sequences, width), generator=generator).sort(1).values + 10**10
    edges = torch.tensor(bucket_edges(1 << 30))
    for row, length in enumerate(LENGTHS[:sequences]):
        query = min(length, width - 1)
        count = min(query, edges.numel())
        times[row, query - count : query] = times[row, query] - edges[:count].flip(0)
    # Differences beyond an int32, and one event in the future.
    times[3] *= 10**3
    times[4, 10] = times[4, 63] + 1000
    return times


def research(has_time: bool = True) -> Callable[[torch.Generator, int], ResearchMask]:
    """Biases of the order of the logits, so that a wrong one is seen."""

    def make(generator: torch.Generator, length: int) -> ResearchMask:
        position = torch.randn(2 * WIDTH - 1, generator=generator)
        if not has_time:
            return ResearchMask(position, float(WIDTH))
        weights = torch.randn(129, generator=generator)
        return ResearchMask(position, float(WIDTH), timestamps(generator, len(LENGTHS), WIDTH), weights)

    return make


def production(
    has_targets: bool = False, has_scale: bool = False, window: int = 0, contextual: int = 0
) -> Callable[[torch.Generator, int], ProductionMask]:
    """Every row of `LENGTHS` has its contextual rows, or is shorter than they are and has no targets."""

    def make(generator: torch.Generator, length: int) -> ProductionMask:
        targets = torch.tensor([2, 0, 0, 70, 1, 0, 33]) if has_targets else None
        scale = 0.5 + torch.rand(length, generator=generator) if has_scale else None
        return ProductionMask(0.4, 100.0, scale, targets, window, contextual)

    return make


CASES = {
    "research, heads of 25": Case(2, 25, 25, research()),
    "research, K is not V": Case(1, 50, 20, research()),
    "research, positions alone": Case(1, 16, 16, research(has_time=False)),
    "causal": Case(2, 32, 64, production()),
    "targets": Case(1, 16, 16, production(has_targets=True)),
    "window": Case(1, 16, 16, production(window=20)),
    "window wider than a block": Case(1, 16, 16, production(window=70)),
    "contextual rows": Case(1, 16, 16, production(contextual=3)),
    "contextual rows beyond a block": Case(1, 16, 16, production(contextual=40), (64, 130, 41)),
    "everything": Case(1, 16, 16, production(True, True, 40, 3)),
    "a head of 256": Case(1, 256, 200, production(), (33, 0, 70)),
}


def _rounded(mask: Mask, dtype: torch.dtype) -> Mask:
    tensors = {k: x for k, x in vars(mask).items() if isinstance(x, torch.Tensor) and x.is_floating_point()}
    return replace(mask, **{name: x.to(dtype) for name, x in tensors.items()})


def _placed(mask: Mask, device: torch.device) -> Mask:
    tensors = {k: x for k, x in vars(mask).items() if isinstance(x, torch.Tensor)}
    return replace(mask, **{name: x.to(device) for name, x in tensors.items()})


def verdict(case: Case, precision: str, run: Run, seed: int = 0) -> Verdict:
    """Judge `run(q, k, v, offsets, max_seq_len, mask)`, which gets tensors on `DEVICE`."""
    dtype = PRECISIONS[precision].dtype
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor((0, *case.lengths)).cumsum(0)
    total, longest = int(offsets[-1]), max(case.lengths)
    sizes = (case.attention_dim, case.attention_dim, case.value_dim)
    q, k, v = (torch.randn(total, case.heads, size, generator=generator).to(dtype) for size in sizes)
    # Logits of order one, so that SiLU is neither linear nor flat.
    q = q / case.attention_dim**0.5
    mask = _rounded(case.mask(generator, total), dtype)
    oracle = hstu_attention(
        *(x.double() for x in (q, k, v)), offsets, longest, _rounded(mask, torch.float64), backend="eager"
    )
    placed = [x.to(DEVICE) for x in (q, k, v, offsets)]
    on_device = _placed(mask, DEVICE)
    reference = hstu_attention(*placed, longest, on_device, backend="eager").cpu()
    result = run(*placed, longest, on_device).cpu()
    # One module in the harness, whose sums run over a head's elements and over a row's columns.
    return judge(oracle, reference, result, PRECISIONS[precision], max(case.attention_dim, longest))


def before_garbage(run: Run, rows: int) -> Run:
    """`run` with a sequence of `rows` NaN behind the others, for production masks; the others' result."""

    def surrounded(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        offsets: torch.Tensor,
        longest: int,
        mask: ProductionMask,
    ) -> torch.Tensor:
        length = q.size(0)
        q, k, v = (torch.cat([x, x.new_full((rows, *x.shape[1:]), float("nan"))]) for x in (q, k, v))
        if mask.num_targets is not None:
            mask = replace(mask, num_targets=pad(mask.num_targets, (0, 1)))
        if mask.attn_scale is not None:
            mask = replace(mask, attn_scale=pad(mask.attn_scale, (0, rows), value=1.0))
        offsets = torch.cat([offsets, offsets[-1:] + rows])
        return run(q, k, v, offsets, max(longest, rows), mask)[:length]

    return surrounded


def with_fault(old: str, new: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`triton_launch` with a kernel in whose source, or that of one of its parts, `old` reads `new`."""
    from kernels.hstu_attention import triton_kernel, triton_kernel_bias, triton_kernel_masks, triton_launch

    if old in Path(triton_kernel.__file__).read_text():
        faulty = mutated(triton_kernel, old, new, folder, monkeypatch)
    else:
        parts = (triton_kernel_bias, triton_kernel_masks)
        part = next(x for x in parts if old in Path(x.__file__).read_text())
        wrong = mutated(part, old, new, folder, monkeypatch)
        faulty = mutated(triton_kernel, part.__name__, wrong.__name__, folder, monkeypatch)
    monkeypatch.setattr(triton_launch, "hstu_attention_kernel", faulty.hstu_attention_kernel)
    return triton_launch
