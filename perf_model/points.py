"""Points to measure: sizes for the calibration, and other sizes for the evaluation.

The two sets share no point. Calibration times single kernels on a coarse grid. Evaluation times parts of
models: bags, whole MLPs, whole attentions.

Legend of the sizes: m, n, k of a product (m, k) @ (k, n); b batch, n sequence, h heads, d head width of
attention; rows, dim, bag, batch of a lookup.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from parity.timing.ceilings import MATMUL_PRECISIONS

Sizes = dict[str, int | tuple[int, ...]]


@dataclass(frozen=True)
class Point:
    """One thing to time.

    Attributes:
        family: kind of workload, a key of `perf_model.workloads.BUILDERS`.
        precision: one of `MATMUL_PRECISIONS`.
        sizes: the family's own sizes.
    """

    family: str
    precision: str
    sizes: Sizes

    @property
    def key(self) -> str:
        """A unique name of the point."""
        parts = (
            f"{name}={'-'.join(map(str, size)) if isinstance(size, tuple) else size}"
            for name, size in self.sizes.items()
        )
        return f"{self.family}/{self.precision}/{','.join(parts)}"

    def __hash__(self) -> int:
        return hash(self.key)


ROTATED_BYTES = 3 * 60 * 2**20
"""Bytes that a replay touches before it reuses a set of indices: three times the H200's 60 MB of L2."""
MOST_SETS = 256


def index_sets(bag: int, batch: int, dim: int, rows: int) -> int:
    """Number of sets of random indices that the timing of a lookup rotates through."""
    touched = batch * bag * 8 + min(batch * bag, rows) * dim * 4
    return max(4, min(MOST_SETS, -(-ROTATED_BYTES // touched)))


def _bags(*choices: tuple[int, ...]) -> Iterator[Point]:
    """Lookups of all combinations of rows, dims, bags and batches."""
    for row, dim, bag, batch in itertools.product(*choices):
        yield Point("embedding_bag", "fp32", {"rows": row, "dim": dim, "bag": bag, "batch": batch})


# Odd widths, even widths (aligned to two elements), and multiples of eight.
_WIDTHS = {"odd": (13, 101, 479), "even": (18, 50, 418), "aligned": (16, 64, 256, 1024, 4096)}
_BATCHES = (1, 16, 128, 1024, 8192, 65536)


def _products() -> Iterator[Point]:
    for precision in MATMUL_PRECISIONS:
        sizes = [
            *(size for widths in _WIDTHS.values() for size in itertools.product(_BATCHES, widths, widths)),
            *itertools.product((16, 1024, 8192), (13, 479, 1030), (64, 512)),
            *itertools.product((1, 64, 1024, 16384), (64, 256, 1024), (1,)),
            *itertools.product((16, 128, 2048), (16384, 131072), (16, 128)),
        ]
        for m, k, n in sizes:
            if m * (n + k) <= 2**29:
                yield Point("product", precision, {"m": m, "n": n, "k": k})


BATCHED = ("scores", "scores_plain", "values")


def _batched_products() -> Iterator[Point]:
    batches, lengths, widths = (1, 8, 64, 512, 8192), (33, 128, 201, 402, 1023, 2048), (8, 25, 50, 64, 128)
    for precision, b, n, d in itertools.product(MATMUL_PRECISIONS, batches, lengths, widths):
        if b * n * n <= 2**27:
            for family in BATCHED:
                yield Point(family, precision, {"b": b, "n": n, "d": d})


STREAMS = (
    *("unary", "binary", "broadcast", "broadcast_odd", "mask", "mask_odd", "permute", "permute_odd"),
    *("transpose", "norm", "norm_odd", "gather", "rows", "cat", "cast", "fill"),
)


def _streams() -> Iterator[Point]:
    for precision, kind in itertools.product(("fp32", "bf16"), STREAMS):
        for elements in (2**12, 2**14, 2**16, 2**18, 2**20, 2**21, 2**22, 2**23, 2**24, 2**25, 2**27):
            yield Point(kind, precision, {"elements": elements})


def calibration_points() -> list[Point]:
    """Single kernels on a coarse grid, and bags of sizes outside of the evaluation."""
    bags = _bags((3_000, 40_000, 400_000, 3_000_000), (32, 96, 192), (2, 12, 48), (1024, 5000))
    points = [*_products(), *_batched_products(), *_streams(), *bags]
    return list({point.key: point for point in points}.values())


_MLPS = (
    (13, 512, 256, 128),
    (13, 512, 256, 64, 16),
    (479, 1024, 1024, 512, 256, 1),
    (367, 512, 256, 1),
    (50, 200),
    (96, 384, 96),
    (512, 2048, 512),
    (768, 768, 768, 768),
    (3072, 1536, 384),
    (33, 77, 155, 1),
)
_ATTENTIONS = (
    {"b": 1, "n": 211, "h": 1, "d": 50},
    {"b": 4, "n": 211, "h": 2, "d": 25},
    {"b": 32, "n": 211, "h": 2, "d": 25},
    {"b": 128, "n": 211, "h": 2, "d": 25},
    {"b": 128, "n": 61, "h": 8, "d": 8},
    {"b": 16, "n": 96, "h": 4, "d": 32},
    {"b": 256, "n": 48, "h": 4, "d": 128},
    {"b": 4, "n": 500, "h": 8, "d": 32},
    {"b": 32, "n": 640, "h": 1, "d": 128},
    {"b": 4, "n": 1011, "h": 4, "d": 64},
    {"b": 16, "n": 1011, "h": 4, "d": 64},
    {"b": 2, "n": 2000, "h": 4, "d": 64},
    {"b": 1, "n": 4096, "h": 4, "d": 128},
    {"b": 4, "n": 4096, "h": 2, "d": 64},
)


def evaluation_points() -> list[Point]:
    """The 456 points of the evaluation; none is a calibration point."""
    rows = (1_000, 10_000, 100_000, 1_000_000, 5_000_000)
    points = list(_bags(rows, (32, 64, 128, 256), (1, 5, 20, 80), (512, 2048, 8192)))
    for precision in MATMUL_PRECISIONS:
        for widths, batch in itertools.product(_MLPS, (4, 256, 2048, 16384)):
            points.append(Point("mlp", precision, {"batch": batch, "widths": widths}))
        points += [Point("attention", precision, dict(sizes)) for sizes in _ATTENTIONS]
    return points


BIG_ROWS, BIG_ROOFLINE = 100_000, 10e-6


def is_big(point: Point, roofline: float) -> bool:
    """Whether a point is big: by the notebook's rule for lookups, else by a roofline far above a launch.

    Args:
        roofline: seconds of the point's FLOPs or fewest bytes at the GPU's ceilings.
    """
    if point.family == "embedding_bag":
        return point.sizes["rows"] >= BIG_ROWS
    return roofline >= BIG_ROOFLINE
