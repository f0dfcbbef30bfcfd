"""The least time that a module can take on a GPU whose ceilings were measured, and what sets it.

A limit is a bound, not a prediction: it assumes that all arithmetic and all traffic overlap, that nothing is
moved twice, and that one kernel does everything. Timings repeat a module over the same tensors, so that what
fits in the L2 is there already; a limit that assumed a cold cache would be beaten. The time is therefore the
largest of

    flops     FLOPs / matmul rate of the precision
    cache     bytes / L2 bandwidth
    memory    (bytes - L2 size) / DRAM bandwidth
    launch    a kernel that does nothing
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perf_model.ceilings import Ceilings
from perf_model.points import PRECISIONS
from perf_model.work.parts import Work

Bound = Literal["flops", "cache", "memory", "launch"]


@dataclass(frozen=True)
class Limit:
    """The least seconds that a module's work takes, and which of the ceilings they come from."""

    seconds: float
    bound: Bound


def limit(work: Work, precision: str, ceilings: Ceilings) -> Limit:
    """The limit of a module that is run again and again on the same tensors.

    Raises:
        ValueError: a precision whose matmul rate is not known.
    """
    least: dict[Bound, float] = {
        "flops": work.flops / _rate(precision, ceilings),
        "cache": work.bytes / ceilings.l2_bandwidth,
        "memory": max(0, work.bytes - ceilings.gpu.l2_bytes) / ceilings.copy_bandwidth,
        "launch": ceilings.kernel_seconds,
    }
    bound = max(least, key=lambda name: least[name])
    return Limit(least[bound], bound)


def roofline(work: Work, precision: str, ceilings: Ceilings) -> float:
    """Seconds of the work with nothing in the caches and no launch: its FLOPs or its bytes from DRAM.

    Raises:
        ValueError: a precision whose matmul rate is not known.
    """
    return max(work.flops / _rate(precision, ceilings), work.bytes / ceilings.copy_bandwidth)


def _rate(precision: str, ceilings: Ceilings) -> float:
    if precision not in ceilings.matmul:
        raise ValueError(f"precision: {precision!r} has no measured matmul rate; use {', '.join(PRECISIONS)}")
    return ceilings.matmul[precision]
