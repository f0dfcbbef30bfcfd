"""Workloads of the points, on a GPU for timing, or on the meta device for tracing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from perf_model.points import Point, index_sets
from reference.transduction_dense import HSTUAttentionDense

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
WIDTH, ODD_WIDTH = 128, 77
"""Columns of the tensors of streams: a multiple of the vector width, and an odd number."""


@dataclass(frozen=True)
class Workload:
    """A function to time; its argument rotates through 0 to `rotation` - 1."""

    launch: Callable[[int], object]
    rotation: int = 1


class Maker:
    """Makes a point's tensors on one device. Values are random, since some units multiply zeros faster.

    Args:
        device: "cuda", or "meta" for shapes alone.
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self._random: torch.Tensor | None = None

    def floats(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self.device, dtype=dtype)

    def indices(self, below: int, *shape: int) -> torch.Tensor:
        return torch.randint(below, shape, device=self.device)

    def table(self, rows: int, dim: int) -> torch.Tensor:
        """A table in one buffer that all tables share: several GB are generated once."""
        if self._random is None or self._random.numel() < rows * dim:
            self._random = None
            self._random = torch.rand(rows * dim, device=self.device)
        return self._random[: rows * dim].view(rows, dim)

    def make(self, point: Point) -> Workload:
        """The point's workload. Sets TF32 for the whole process, by the point's precision."""
        torch.backends.cuda.matmul.allow_tf32 = point.precision == "tf32"
        return BUILDERS[point.family](self, DTYPES[point.precision], **point.sizes)


def _product(maker: Maker, dtype: torch.dtype, m: int, n: int, k: int) -> Workload:
    x, weight, bias = maker.floats(dtype, m, k), maker.floats(dtype, n, k), maker.floats(dtype, n)
    return Workload(lambda _: F.linear(x, weight, bias))


def _scores(maker: Maker, dtype: torch.dtype, b: int, n: int, d: int) -> Workload:
    q, k = maker.floats(dtype, b, n, d), maker.floats(dtype, b, n, d)
    return Workload(lambda _: torch.bmm(q, k.transpose(1, 2)))


def _values(maker: Maker, dtype: torch.dtype, b: int, n: int, d: int) -> Workload:
    weights, v = maker.floats(dtype, b, n, n), maker.floats(dtype, b, n, d)
    return Workload(lambda _: torch.bmm(weights, v))


def _scores_plain(maker: Maker, dtype: torch.dtype, b: int, n: int, d: int) -> Workload:
    q, k_transposed = maker.floats(dtype, b, n, d), maker.floats(dtype, b, d, n)
    return Workload(lambda _: torch.bmm(q, k_transposed))


Stream = Callable[[Maker, torch.dtype, int], Callable[[], object]]


def _stream(make: Stream) -> Callable[..., Workload]:
    def build(maker: Maker, dtype: torch.dtype, elements: int) -> Workload:
        run = make(maker, dtype, elements)
        return Workload(lambda _: run())

    return build


def _unary(maker: Maker, dtype: torch.dtype, elements: int) -> Callable[[], object]:
    x = maker.floats(dtype, elements)
    return lambda: F.silu(x)


def _binary(maker: Maker, dtype: torch.dtype, elements: int) -> Callable[[], object]:
    x, y = maker.floats(dtype, elements), maker.floats(dtype, elements)
    return lambda: x + y


def _broadcast(width: int) -> Stream:
    """A matrix added to two matrices, like a bias to the scores of two heads."""

    def make(maker: Maker, dtype: torch.dtype, elements: int) -> Callable[[], object]:
        n = elements // (2 * width)
        x, y = maker.floats(dtype, n, 2, width), maker.floats(dtype, n, 1, width)
        return lambda: x + y

    return make


def _mask(width: int) -> Stream:
    def make(maker: Maker, dtype: torch.dtype, elements: int) -> Callable[[], object]:
        n = elements // width
        x, padded = maker.floats(dtype, n, width), maker.indices(2, n, 1).bool()
        return lambda: x.masked_fill(padded, 0.0)

    return make


def _permute(width: int) -> Stream:
    """Heads moved to the front: rows of `width` elements stay whole."""

    def make(maker: Maker, dtype: torch.dtype, elements: int) -> Callable[[], object]:
        x = maker.floats(dtype, elements // (2 * width), 2, width).transpose(0, 1)
        return lambda: x.contiguous()

    return make


def _transpose(maker: Maker, dtype: torch.dtype, elements: int) -> Callable[[], object]:
    """A transpose, in which no row stays whole."""
    x = maker.floats(dtype, -(-elements // (64 * WIDTH)), 64, WIDTH).transpose(1, 2)
    return lambda: x.contiguous()


def _norm(width: int) -> Stream:
    def make(maker: Maker, dtype: torch.dtype, elements: int) -> Callable[[], object]:
        x = maker.floats(dtype, elements // width, width)
        return lambda: F.layer_norm(x, (width,))

    return make


def _gather(maker: Maker, dtype: torch.dtype, elements: int) -> Callable[[], object]:
    table, rows = maker.floats(dtype, 4096), maker.indices(4096, elements)
    return lambda: torch.index_select(table, 0, rows)


def _rows(maker: Maker, dtype: torch.dtype, elements: int) -> Callable[[], object]:
    table, rows = maker.floats(dtype, 4096, WIDTH), maker.indices(4096, elements // WIDTH)
    return lambda: F.embedding(rows, table)


def _cat(maker: Maker, dtype: torch.dtype, elements: int) -> Callable[[], object]:
    x, y = (maker.floats(dtype, elements // (2 * WIDTH), WIDTH) for _ in range(2))
    return lambda: torch.cat((x, y), dim=1)


def _cast(maker: Maker, dtype: torch.dtype, elements: int) -> Callable[[], object]:
    x = maker.indices(1000, elements)
    return lambda: x.to(dtype)


def _fill(maker: Maker, dtype: torch.dtype, elements: int) -> Callable[[], object]:
    return lambda: torch.arange(elements, device=maker.device, dtype=dtype)


def _embedding_bag(maker: Maker, dtype: torch.dtype, rows: int, dim: int, bag: int, batch: int) -> Workload:
    table = maker.table(rows, dim)
    sets = index_sets(bag, batch, dim, rows)
    indices, offsets = maker.indices(rows, sets, batch * bag), torch.arange(batch, device=maker.device) * bag
    return Workload(lambda i: F.embedding_bag(indices[i], table, offsets, mode="sum"), sets)


def _mlp(maker: Maker, dtype: torch.dtype, batch: int, widths: tuple[int, ...]) -> Workload:
    layers: list[torch.nn.Module] = []
    for fan_in, fan_out in zip(widths[:-1], widths[1:], strict=True):
        layers += [torch.nn.Linear(fan_in, fan_out, device=maker.device, dtype=dtype), torch.nn.ReLU()]
    model, x = torch.nn.Sequential(*layers), maker.floats(dtype, batch, widths[0])
    return Workload(lambda _: model(x))


def _attention(maker: Maker, dtype: torch.dtype, b: int, n: int, h: int, d: int) -> Workload:
    model = HSTUAttentionDense(h, d, d, "rel_bias", n)
    q, k, v = (maker.floats(dtype, b, n, h * d) for _ in range(3))
    bias, mask = maker.floats(dtype, b, n, n), maker.floats(dtype, n, n).tril()
    return Workload(lambda _: model(q, k, v, bias, mask))


BUILDERS: dict[str, Callable[..., Workload]] = {
    "product": _product,
    "scores": _scores,
    "scores_plain": _scores_plain,
    "values": _values,
    "embedding_bag": _embedding_bag,
    "mlp": _mlp,
    "attention": _attention,
    "unary": _stream(_unary),
    "binary": _stream(_binary),
    "broadcast": _stream(_broadcast(WIDTH)),
    "broadcast_odd": _stream(_broadcast(ODD_WIDTH)),
    "mask": _stream(_mask(WIDTH)),
    "mask_odd": _stream(_mask(ODD_WIDTH)),
    "permute": _stream(_permute(WIDTH)),
    "permute_odd": _stream(_permute(ODD_WIDTH)),
    "transpose": _stream(_transpose),
    "norm": _stream(_norm(WIDTH)),
    "norm_odd": _stream(_norm(ODD_WIDTH)),
    "gather": _stream(_gather),
    "rows": _stream(_rows),
    "cat": _stream(_cat),
    "cast": _stream(_cast),
    "fill": _stream(_fill),
}
