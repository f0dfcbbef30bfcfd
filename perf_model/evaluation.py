"""Predictions of measured points, and their errors."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from parity.base.work import Work
from parity.timing.ceilings import Ceilings
from perf_model.embedding import Lookup, NotebookGPU, forward_microseconds
from perf_model.errors import ErrorStatistics
from perf_model.estimate import estimate
from perf_model.kernels import KernelModel
from perf_model.lookup import BagSizes
from perf_model.measured import Measured
from perf_model.points import Point, is_big
from perf_model.products import ITEM_BYTES
from perf_model.trace import Trace, trace
from perf_model.workloads import Maker

NOTEBOOK_WARPS = 64
"""Largest number of warps of a multiprocessor, for the notebook's predictor."""


@dataclass(frozen=True)
class Prediction:
    """A measured point with its predicted seconds; `big` as of `perf_model.points.is_big`."""

    measured: Measured
    seconds: float
    big: bool


def predict(measured: Iterable[Measured], model: KernelModel) -> list[Prediction]:
    """The prediction of each point, without use of its own measurement."""
    return [
        Prediction(m, point_seconds(m.point, model), is_big(m.point, _cold_seconds(m.point, model)))
        for m in measured
    ]


def point_seconds(point: Point, model: KernelModel) -> float:
    """Predicted seconds of one launch of a point between others in a graph."""
    if point.family == "embedding_bag":
        return model.lookups.seconds(BagSizes.of(**point.sizes))
    return estimate(_trace(point), point.precision, model).kernels


@functools.cache
def _trace(point: Point) -> Trace:
    """The operations of a point, which every table asks for again."""
    work = Maker("meta").make(point)
    return trace(lambda: work.launch(0))


def cold_seconds(work: Work, precision: str, ceilings: Ceilings) -> float:
    """Seconds of the work with cold caches and without a launch: its FLOPs, or its bytes from DRAM.

    Raises:
        ValueError: the precision has no measured matmul rate.
    """
    return max(work.flops / ceilings.matmul_rate(precision), work.bytes / ceilings.copy_bandwidth)


def _cold_seconds(point: Point, model: KernelModel) -> float:
    return cold_seconds(point_work(point), point.precision, model.ceilings)


def point_work(point: Point) -> Work:
    """FLOPs of a point's products, and the fewest bytes of its inputs and results.

    Bytes of a lookup are its indices, offsets, rows and results.
    """
    sizes, itemsize = point.sizes, ITEM_BYTES[point.precision]
    if point.family == "embedding_bag":
        bags = BagSizes.of(**sizes)
        looked_up = bags.batch * bags.bag
        rows = min(looked_up, bags.rows) * bags.dim * itemsize
        return Work(0, rows, 8 * (looked_up + bags.batch), bags.batch * bags.dim * itemsize)
    if point.family == "mlp":
        widths, batch = sizes["widths"], sizes["batch"]
        pairs = list(zip(widths, widths[1:], strict=False))
        weights = itemsize * sum(fan_in * fan_out + fan_out for fan_in, fan_out in pairs)
        flops = sum(2 * batch * fan_in * fan_out for fan_in, fan_out in pairs)
        return Work(flops, weights, itemsize * batch * widths[0], itemsize * batch * widths[-1])
    b, n, h, d = (sizes[name] for name in ("b", "n", "h", "d"))
    row = itemsize * b * n * h * d
    return Work(4 * b * h * n * n * d, 0, 3 * row + itemsize * (b + 1) * n * n, row)


def notebook_seconds(point: Point, model: KernelModel) -> float:
    """Seconds of a lookup by the notebook's own predictor, with this GPU's constants."""
    ceilings = model.ceilings
    gpu = NotebookGPU(
        dram_bandwidth=ceilings.copy_bandwidth / 1e9,
        l2_bandwidth=ceilings.l2_bandwidth / 1e9,
        throughput=ceilings.matmul["fp32"] / 1e9,
        l2_size=ceilings.gpu.l2_bytes,
        multiprocessors=ceilings.gpu.multiprocessors,
    )
    sizes = point.sizes
    lookup = Lookup(sizes["batch"], sizes["rows"], 1, sizes["bag"], sizes["dim"], NOTEBOOK_WARPS)
    return forward_microseconds(lookup, gpu) / 1e6


def statistics_of(predictions: Iterable[Prediction]) -> ErrorStatistics:
    """Error statistics of predictions; raises `ValueError` for fewer than two."""
    chosen = list(predictions)
    return ErrorStatistics.of([p.seconds for p in chosen], [p.measured.median for p in chosen])
