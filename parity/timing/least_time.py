"""The least time of a module on a GPU with measured ceilings, and the ceiling that determines it.

A roofline is no prediction. It assumes that arithmetic and traffic overlap, that each byte moves once, and
that one kernel does everything. Timings repeat a module over the same tensors, and the L2 holds as much of
them as fits: the cache is warm. The roofline is the largest of

    flops     FLOPs / matmul rate of the precision
    cache     bytes / L2 bandwidth
    memory    (bytes - L2 size) / DRAM bandwidth
    launch    an empty kernel
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parity.base.work import Work
from parity.timing.ceilings import Ceilings

Ceiling = Literal["flops", "cache", "memory", "launch"]


@dataclass(frozen=True)
class Roofline:
    """The least seconds of a module's work, and the ceiling that determines them."""

    seconds: float
    ceiling: Ceiling


def cold_seconds(work: Work, operands: str, ceilings: Ceilings) -> float:
    """The least seconds of a module whose tensors are in no cache, without its launch.

    Args:
        work: its FLOPs and bytes.
        operands: precision, or type of the codes, of the numbers that its products multiply.
        ceilings: of the GPU.

    Raises:
        ValueError: the operands have no measured matmul rate.
    """
    return max(work.flops / ceilings.matmul_rate(operands), work.bytes / ceilings.copy_bandwidth)


def roofline(work: Work, precision: str, ceilings: Ceilings) -> Roofline:
    """The roofline of a module in repeated runs on the same tensors.

    Raises:
        ValueError: the precision has no measured matmul rate.
    """
    least: dict[Ceiling, float] = {
        "flops": work.flops / ceilings.matmul_rate(precision),
        "cache": work.bytes / ceilings.l2_bandwidth,
        "memory": max(0, work.bytes - ceilings.gpu.l2_bytes) / ceilings.copy_bandwidth,
        "launch": ceilings.kernel_seconds,
    }
    ceiling = max(least, key=lambda name: least[name])
    return Roofline(least[ceiling], ceiling)
