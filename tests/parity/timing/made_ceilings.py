"""Ceilings measured on an H200, and those of an invented GPU whose numbers are round."""

from __future__ import annotations

from functools import cache

from parity.timing.ceilings import FOLDER, Ceilings, read_ceilings
from parity.timing.gpu import GPU

ROUND = Ceilings(
    gpu=GPU(name="Round", capability=(9, 0), multiprocessors=100, memory_gib=100, l2_bytes=1_000_000),
    copy_bandwidth=1e12,
    l2_bandwidth=4e12,
    matmul={"fp32": 1e13, "tf32": 1e14, "fp16": 2e14, "bf16": 2e14},
    kernel_seconds=1e-6,
    graph_seconds=5e-6,
    host_seconds={"unary": 5e-6, "view": 1e-6},
    environment={},
)


@cache
def h200() -> Ceilings:
    return read_ceilings(FOLDER / "h200.json")
