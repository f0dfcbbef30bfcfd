"""Seconds of matrix products: a rough law, corrected by measured neighbours.

    law = launch + FLOPs / rate + bytes / bandwidth

The correction covers the library's choice of kernel, its tiles, its last wave and its split sums. It is the
logarithm of measured over law, interpolated linearly among the nearest measured products in (batch, m, n, k),
on a logarithmic scale. Alignment of the operands' rows counts as distance, since it restricts the choice of
kernels.

The law can count whole waves of tiles in place of FLOPs. The cross-validation of the table
(docs/performance.md) shows no benefit on an H200: the measured products already contain their waves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from parity.timing.ceilings import Ceilings
from perf_model.measured import Measured

NEIGHBOURS = 8
CLOSENESS_POWER = 3
ALIGNMENT_WEIGHT = 2.0
SLOPE_PENALTY = 0.3
TILE = 128
"""Side of the tiles of a wave: cuBLAS's most common one on this generation."""
WIDEST_ALIGNMENT = 8
ITEM_BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}


@dataclass(frozen=True)
class Product:
    """`batch` products (m, k) @ (k, n); a batch of 1 is a product without a batch.

    Attributes:
        transposed: whether the second factor has the memory layout (n, k), like a linear layer's weight.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    transposed: bool = True

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.n * self.k

    def moved(self, itemsize: int) -> int:
        """Bytes of both factors and the result."""
        m, n, k = self.m, self.n, self.k
        return itemsize * self.batch * (m * k + k * n + m * n)

    def flops_in_waves(self, multiprocessors: int) -> float:
        """FLOPs of whole tiles, and of whole waves where there is more than one."""
        tiles = self.batch * -(-self.m // TILE) * -(-self.n // TILE)
        if tiles > multiprocessors:
            tiles = -(-tiles // multiprocessors) * multiprocessors
        return 2.0 * tiles * TILE * TILE * self.k

    def features(self) -> np.ndarray:
        """Coordinates of the product: binary logarithms of its sizes, then of its alignments."""
        lead = self.k if self.transposed else self.n
        alignments = [_alignment(self.k), _alignment(lead), _alignment(self.n)]
        return np.log2([self.batch, self.m, self.n, self.k, *alignments])


def _alignment(size: int) -> int:
    return min(size & -size, WIDEST_ALIGNMENT)


def product_of(measured: Measured) -> Product | None:
    """The product of a calibration point; None for any other point."""
    sizes, family = measured.point.sizes, measured.point.family
    if family == "product":
        return Product(sizes["m"], sizes["n"], sizes["k"])
    if family in ("scores", "scores_plain"):
        return Product(sizes["n"], sizes["n"], sizes["d"], sizes["b"], transposed=family == "scores")
    if family == "values":
        return Product(sizes["n"], sizes["d"], sizes["n"], sizes["b"], transposed=False)
    return None


class ProductModel:
    """Seconds of products in one precision, batched or not: cuBLAS chooses among different kernels for each.

    Args:
        measured: calibration points; other families and precisions are ignored.
        waves: whether the law counts whole waves of tiles.

    Raises:
        ValueError: fewer products than neighbours.
    """

    def __init__(
        self,
        measured: Iterable[Measured],
        precision: str,
        batched: bool,
        ceilings: Ceilings,
        waves: bool = False,
    ) -> None:
        self._precision = precision
        self._waves = waves
        self._ceilings = ceilings
        own = [m for m in measured if m.point.precision == precision and _is_batched(m) == batched]
        timed = [(product, m.median) for m in own if (product := product_of(m)) is not None]
        if len(timed) < NEIGHBOURS:
            raise ValueError(f"{len(timed)} measured products in {precision}: give at least {NEIGHBOURS}")
        self._products = [product for product, _ in timed]
        self._seconds = [seconds for _, seconds in timed]
        self._features = np.array([product.features() for product, _ in timed])
        self._corrections = np.log([seconds / self.law(product) for product, seconds in timed])

    def law(self, product: Product) -> float:
        """Seconds by the rough law."""
        moved = product.moved(ITEM_BYTES[self._precision])
        ceilings = self._ceilings
        fits = moved <= ceilings.gpu.l2_bytes
        bandwidth = ceilings.l2_bandwidth if fits else ceilings.copy_bandwidth
        flops = product.flops
        if self._waves:
            flops = product.flops_in_waves(ceilings.gpu.multiprocessors)
        return ceilings.kernel_seconds + flops / ceilings.matmul[self._precision] + moved / bandwidth

    def seconds(self, product: Product) -> float:
        """Seconds of a product, between others in a graph."""
        return self.law(product) * float(np.exp(self._correction(product.features())))

    def cross_validated(self) -> tuple[list[float], list[float]]:
        """Predicted and measured seconds of each measured product; the prediction uses all others."""
        features, corrections, predicted = self._features, self._corrections, []
        for left_out, product in enumerate(self._products):
            self._features = np.delete(features, left_out, axis=0)
            self._corrections = np.delete(corrections, left_out)
            predicted.append(self.seconds(product))
        self._features, self._corrections = features, corrections
        return predicted, self._seconds

    def _correction(self, features: np.ndarray) -> float:
        """Weighted linear fit to the nearest measured corrections, with a penalty on slopes."""
        offsets = self._features - features
        sizes, alignments = offsets[:, :4], offsets[:, 4:]
        distances = np.sqrt((sizes**2).sum(1) + ALIGNMENT_WEIGHT * (alignments**2).sum(1))
        nearest = np.argsort(distances, kind="stable")[:NEIGHBOURS]
        weights = 1.0 / (distances[nearest] + 1e-3) ** CLOSENESS_POWER
        design = np.column_stack([np.ones(len(nearest)), sizes[nearest]])
        penalty = np.diag([0.0, *[SLOPE_PENALTY] * sizes.shape[1]])
        left = design.T @ (design * weights[:, None]) + penalty
        corrections = self._corrections[nearest]
        value = np.linalg.solve(left, design.T @ (weights * corrections))[0]
        # Beyond the measured sizes, the nearest corrections are the bounds.
        return float(np.clip(value, corrections.min(), corrections.max()))


def _is_batched(measured: Measured) -> bool:
    return measured.point.family != "product"
