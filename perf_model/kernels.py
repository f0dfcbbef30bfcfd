"""Seconds of each of PyTorch's kernels on the GPU, from tables measured on single kernels.

`perf_model.products` estimates products, and `perf_model.lookup` estimates bags. All other operations stream.
Their time is the larger of two table entries of their kind of kernel, by elements and by bytes. Index
arithmetic determines the time of broadcasts, gathers and norms.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence

from parity.timing.ceilings import Ceilings
from perf_model import lookup
from perf_model.measured import Measured
from perf_model.points import STREAMS
from perf_model.products import Product, ProductModel
from perf_model.trace import Array, Operation

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
BAGS = frozenset({"_embedding_bag", "_embedding_bag_forward_only"})
NORMS = frozenset({"native_layer_norm", "linalg_vector_norm", "sum", "mean", "_softmax"})
_KINDS = {
    **dict.fromkeys(NORMS, "norm"),
    "masked_fill": "mask",
    "arange": "fill",
    "cat": "cat",
    "stack": "cat",
    "gather": "gather",
}
_LOOKUPS = frozenset({"embedding", "index", "index_select"})
BYTES_KIND = "unary"
VECTOR = 4
"""Elements of a vector load of PyTorch's kernels, for rows of a multiple of that many elements."""
NORM_WIDTHS = {"norm": 128, "norm_odd": 77}
"""Columns of the measured norms. A narrower row takes as long, since one block works on one row."""


def kind_of(operation: Operation) -> str:
    """The kind of kernel that runs a streaming operation, one of `STREAMS`."""
    name, output, tensors = operation.name, operation.outputs[0], _tensors(operation)
    if name in _LOOKUPS:
        return "rows" if len(output.shape) > 1 and operation.inputs[0].shape[1:] else "gather"
    if name == "clone":
        return _copy_kind(tensors[0]) if tensors else BYTES_KIND
    if name == "_to_copy":
        return BYTES_KIND if tensors and tensors[0].floating else "cast"
    if name not in _KINDS:
        if all(array.is_contiguous and array.shape == output.shape for array in tensors):
            return "binary" if len(tensors) > 1 else BYTES_KIND
        return _by_width("broadcast", output.shape[-1])
    kind = _KINDS[name]
    if kind == "norm":
        return _by_width(kind, operation.inputs[0].shape[-1])
    return _by_width(kind, output.shape[-1]) if kind == "mask" else kind


def _by_width(kind: str, width: int) -> str:
    return kind if width % VECTOR == 0 else f"{kind}_odd"


def _copy_kind(source: Array) -> str:
    """The kind of a copy that makes a tensor contiguous, by whether rows stay whole."""
    if source.is_contiguous:
        return BYTES_KIND
    return _by_width("permute", source.shape[-1]) if source.strides[-1] == 1 else "transpose"


def _tensors(operation: Operation) -> list[Array]:
    """Inputs of more than one element."""
    return [array for array in operation.inputs if array.elements > 1]


def product_of(operation: Operation) -> Product:
    """The product that one of `PRODUCTS` computes."""
    left, right = [array for array in operation.inputs if len(array.shape) >= 2][-2:]
    batch = left.shape[0] if len(left.shape) == 3 else 1
    transposed = right.strides[-1] != 1 and right.shape[-1] != 1
    return Product(left.shape[-2], right.shape[-1], left.shape[-1], batch, transposed)


class _Table:
    """Seconds by size, log-linear between measured points and proportional beyond the last."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self._sizes, self._seconds = zip(*sorted(points), strict=True)

    def seconds(self, size: float) -> float:
        place = bisect.bisect_left(self._sizes, size)
        if place == 0:
            return self._seconds[0]
        if place == len(self._sizes):
            return self._seconds[-1] * size / self._sizes[-1]
        (low, high), (first, last) = self._sizes[place - 1 : place + 1], self._seconds[place - 1 : place + 1]
        share = math.log(size / low) / math.log(high / low)
        return first * (last / first) ** share


class KernelModel:
    """Seconds of operations on one GPU.

    Args:
        ceilings: measured ceilings of the GPU.
        calibration: measured calibration points of the same GPU; see `perf_model.points.calibration_points`.

    Raises:
        ValueError: the calibration lacks a table.
    """

    def __init__(self, ceilings: Ceilings, calibration: Iterable[Measured]) -> None:
        self.ceilings = ceilings
        self._measured = tuple(calibration)
        self.lookups = lookup.fit(self._measured, ceilings.kernel_seconds, ceilings.copy_bandwidth)
        self._products: dict[tuple[str, bool], ProductModel] = {}
        self._streams: dict[tuple[str, int], _Table] = {}
        for kind in STREAMS:
            for precision, itemsize in (("fp32", 4), ("bf16", 2)):
                points = [
                    (m.point.sizes["elements"], m.median)
                    for m in self._measured
                    if m.point.family == kind and m.point.precision == precision
                ]
                if not points:
                    raise ValueError(f"the calibration has no {kind} in {precision}: measure it again")
                self._streams[kind, itemsize] = _Table(points)

    def seconds(self, operation: Operation, precision: str) -> float:
        """Seconds of an operation between others in a graph.

        Args:
            operation: an operation of a trace.
            precision: precision of products, one of `parity.timing.ceilings.MATMUL_PRECISIONS`.
        """
        if operation.name in PRODUCTS:
            return self.product_seconds(product_of(operation), precision)
        if operation.name in BAGS:
            return self.lookups.seconds(_bag_sizes(operation))
        return self._stream_seconds(operation)

    def product_seconds(self, product: Product, precision: str) -> float:
        """Seconds of a matrix product."""
        key = (precision, product.batch > 1)
        if key not in self._products:
            self._products[key] = ProductModel(self._measured, *key, self.ceilings)
        return self._products[key].seconds(product)

    def _stream_seconds(self, operation: Operation) -> float:
        kind, output = kind_of(operation), operation.outputs[0]
        elements = output.elements
        moved = output.stored_bytes + sum(array.stored_bytes for array in _tensors(operation))
        if kind in NORM_WIDTHS:
            rows = operation.inputs[0].elements // _row(operation)
            elements = max(operation.inputs[0].elements, rows * NORM_WIDTHS[kind])
        elif operation.name in _LOOKUPS:
            # A lookup reads rows of its table only.
            moved = 2 * output.stored_bytes
        by_bytes = self._streams[BYTES_KIND, 4].seconds(moved / 8)
        itemsize = 4 if output.itemsize > 2 else 2
        if kind not in (BYTES_KIND, "binary"):
            return max(by_bytes, self._streams[kind, itemsize].seconds(elements))
        uniform = {array.itemsize for array in (output, *_tensors(operation))} == {itemsize}
        return self._streams[kind, itemsize].seconds(elements) if uniform else by_bytes


def _row(operation: Operation) -> int:
    """Elements of a row that a norm or a reduction takes together."""
    source, results = operation.inputs[0], operation.outputs[-1]
    return max(1, source.elements // max(1, results.elements))


def _bag_sizes(operation: Operation) -> lookup.BagSizes:
    table, indices, offsets = operation.inputs[:3]
    batch = offsets.elements
    # Two lookups in a table have only the model between them: one set of indices.
    return lookup.BagSizes(table.shape[0], table.shape[1], max(1, indices.elements // batch), batch, 1)
