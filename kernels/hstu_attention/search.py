"""A search of the fastest schedule of a call: candidates, their times on the caller's tensors, the choice.

The rules of `schedules` know a call's sizes alone. At some shapes another schedule is faster;
benchmarks/results/drawn_shapes.md has the candidates' measured gains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from kernels.hstu_attention.device_times import fastest, times_of
from kernels.hstu_attention.interface import hstu_attention, launcher
from kernels.hstu_attention.layout import Call
from kernels.hstu_attention.masks import ProductionMask, ResearchMask
from kernels.hstu_attention.schedules import (
    HALF_TYPES,
    Schedule,
    choose_schedule,
    padded_dim,
    programs_in_fills,
    splits_of_call,
)

# Programs, in fills of a large GPU, up to which the longest one decides the time of a call.
_FEW_FILLS = 3.0


class _Cut(NamedTuple):
    """The fields in which a candidate differs from the derived schedule; group 0 is the derived one's."""

    block_m: int
    block_n: int
    num_stages: int
    group: int = 0
    splits: int = 1
    use_tma: bool = True
    registers: int = 0
    heads: int = 1


# Half types, the production mask and heads of up to 128. Few programs: small blocks, or shared columns.
_FEW = (
    _Cut(16, 64, 3),
    _Cut(32, 64, 3),
    _Cut(32, 64, 3, splits=2),
    _Cut(64, 64, 3),
    _Cut(64, 64, 3, splits=2),
    _Cut(64, 64, 3, splits=3),
    _Cut(64, 32, 3),
    _Cut(64, 32, 3, splits=2),
)
# Many programs: pairs side by side that share the cache, and for narrow heads loads without the copy engine.
_MANY_NARROW = (
    _Cut(64, 64, 3),
    _Cut(64, 64, 3, group=16),
    _Cut(64, 64, 3, group=64),
    _Cut(64, 32, 3, group=16),
    _Cut(64, 32, 3, group=64),
    _Cut(64, 64, 3, use_tma=False),
    _Cut(64, 32, 3, use_tma=False),
    _Cut(64, 128, 2),
)
_MANY_WIDE = (
    _Cut(64, 32, 3, group=8),
    _Cut(64, 32, 3, group=16),
    _Cut(64, 32, 3, group=64),
    _Cut(64, 64, 3),
    _Cut(64, 64, 3, group=64),
    _Cut(64, 64, 2),
    _Cut(64, 32, 2, registers=128),
    _Cut(64, 32, 2, group=16, registers=128),
)
# The form of `ahead`: blocks of columns, and pairs that share the cache.
_AHEAD_NARROW = (
    _Cut(64, 64, 2),
    _Cut(64, 64, 2, registers=128),
    _Cut(64, 64, 2, group=16, registers=128),
    _Cut(64, 64, 2, group=64, registers=128),
    _Cut(64, 32, 3),
    _Cut(64, 32, 3, group=16),
)
_AHEAD_WIDE = (
    _Cut(64, 64, 2),
    _Cut(64, 64, 2, group=16),
    _Cut(64, 32, 2, registers=128),
    _Cut(64, 32, 2, group=16, registers=128),
    _Cut(64, 32, 2, group=32, registers=128),
    _Cut(64, 32, 3),
)
# float32, the research mask, and heads beyond 128.
_UNPIPELINED = (
    _Cut(16, 32, 1, use_tma=False),
    _Cut(32, 32, 1, use_tma=False),
    _Cut(64, 32, 1, use_tma=False),
    _Cut(64, 32, 2, use_tma=False),
    _Cut(16, 32, 1, use_tma=False, heads=2),
    _Cut(32, 32, 1, use_tma=False, heads=2),
    _Cut(64, 32, 1, use_tma=False, heads=2),
    _Cut(64, 32, 2, use_tma=False, heads=2),
)
# The derived schedule and others.
MOST_CANDIDATES = 9


def search_schedule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    max_seq_len: int,
    mask: ResearchMask | ProductionMask,
    *,
    dot_precision: str = "ieee",
) -> Schedule:
    """The fastest schedule of a call among a few, timed on these tensors; for `hstu_attention(schedule=...)`.

    The schedule that the rules derive is one of them. Another one is taken if it is faster by more than the
    spread: three quarters of its rounds are below three quarters of the derived one's. A schedule that needs
    more memory or registers than the GPU has is left out. Every schedule gives the function's result, with
    another order of sums, so that bits may differ between two schedules.

    It compiles up to nine kernels, which takes seconds for the first call of a form, and waits for the GPU.

    Args:
        See `hstu_attention`; the tensors are on a CUDA GPU. They are read only.

    Raises:
        ValueError: see `hstu_attention`.
        RuntimeError: the tensors are not on a CUDA GPU, or a CUDA graph is being captured.
    """
    if q.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("search_schedule cannot run while a CUDA graph is captured: call it before")
    call = Call(q, k, v, offsets, max_seq_len, mask)
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    # Checks the arguments.
    hstu_attention(*call, dot_precision=dot_precision, out=out)
    schedules = candidates(call)
    if len(schedules) == 1:
        return schedules[0]
    runs: dict[Schedule, Callable[[], object]] = {}
    for schedule in schedules:

        def run(schedule: Schedule = schedule) -> object:
            return hstu_attention(*call, dot_precision=dot_precision, out=out, schedule=schedule)

        if _can_launch(run):
            runs[schedule] = run
    times = times_of(list(runs.values()), q.device)
    return fastest(dict(zip(runs, times, strict=True)), schedules[0])


def _can_launch(run: Callable[[], object]) -> bool:
    """Whether the GPU has the memory and registers of a schedule; any other error is the caller's to see."""
    from triton.runtime.errors import OutOfResources

    try:
        run()
    except OutOfResources:
        return False
    return True


def candidates(call: Call) -> list[Schedule]:
    """The derived schedule, and others that measurements found faster at some shape of its kind.

    They have as many stages as the GPU's shared memory holds, and the copy engine where the tensors fit it.
    """
    q, k, v, offsets, max_seq_len, mask = call
    sequences = offsets.numel() - 1
    launch = launcher()
    splits = splits_of_call(q, mask, sequences)
    derived = launch.derived_schedule(call, splits)
    if not (q.size(0) and sequences and max_seq_len):
        return [derived]
    # What the rules derive for any kernel but that of tiny sequences.
    base = choose_schedule(q, v, max_seq_len, mask, sequences, may_pack=False)
    if derived.ahead:
        is_wide = max(padded_dim(q.size(2)), padded_dim(v.size(2))) > 64
        cuts = [_cut(derived, x) for x in (_AHEAD_WIDE if is_wide else _AHEAD_NARROW)]
        return list(dict.fromkeys((derived, launch.with_descriptors(base, k, v), *cuts)))
    others = (launch.with_descriptors(x, k, v) for x in _others(call, base))
    return list(dict.fromkeys((derived, *others)))


def _others(call: Call, base: Schedule) -> list[Schedule]:
    q, max_seq_len = call.q, call.max_seq_len
    return [
        _cut(base, cut)
        for cut in _cuts_of(call)
        if cut.block_m <= padded_dim(max_seq_len) and q.size(1) % cut.heads == 0
    ]


def _cut(base: Schedule, cut: _Cut) -> Schedule:
    return replace(
        base,
        block_m=cut.block_m,
        block_n=cut.block_n,
        num_warps=4,
        num_stages=cut.num_stages,
        group=cut.group or base.group,
        use_tma=cut.use_tma,
        heads=cut.heads,
        splits=cut.splits,
        registers=cut.registers,
        one_loop=base.one_loop and cut.splits == 1,
    )


def _cuts_of(call: Call) -> tuple[_Cut, ...]:
    widest = max(padded_dim(call.q.size(2)), padded_dim(call.v.size(2)))
    if call.q.dtype not in HALF_TYPES or not isinstance(call.mask, ProductionMask) or widest > 128:
        return _UNPIPELINED
    if programs_in_fills(call.q) < _FEW_FILLS:
        return _FEW
    return _MANY_WIDE if widest > 64 else _MANY_NARROW
