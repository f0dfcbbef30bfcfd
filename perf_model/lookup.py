"""PyTorch's embedding-bag kernel on a GPU with a large L2: what bounds it, and a model fitted to it.

One warp works on 32 columns of a bag, a chunk, and reads the bag's rows one after the other: each row costs
the latency of whatever holds it, and all warps together are bounded by how fast row segments can be served.
The seed's predictor (`perf_model.embedding`) knows only bandwidth, which this kernel does not reach.

    seconds = launch + (latency^p + throughput^p)^(1/p)
    latency = start + bag * (hit * hit_latency + (1 - hit) * miss_latency)
    segment = hit * hit_segment + (1 - hit) * miss_segment
    throughput = max(chunks * (chunk + bag * segment), DRAM bytes / bandwidth)

The hit rate is that of random rows in a cache that holds `cache_bytes` of the rows in use: the smaller of the
table and what is touched before it is touched again. The constants are fitted to measured lookups of other
sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields

import numpy as np
from scipy.optimize import least_squares

from perf_model.embedding import SECTOR
from perf_model.measured import Measured
from perf_model.points import index_sets

WARP_COLUMNS = 32
INDEX_BYTES = 8


@dataclass(frozen=True)
class BagSizes:
    """A lookup in one table: `batch` bags of `bag` of its `rows`, each of `dim` float32 columns.

    Attributes:
        sets: sets of indices that are looked up in turn, which keeps rows from being used again soon.
    """

    rows: int
    dim: int
    bag: int
    batch: int
    sets: int

    @classmethod
    def of(cls, rows: int, dim: int, bag: int, batch: int) -> BagSizes:
        """Sizes of a measured point, with the index sets that it was timed with."""
        return cls(rows, dim, bag, batch, index_sets(bag, batch, dim, rows))

    @property
    def row_bytes(self) -> int:
        """Bytes that reading one row moves, in whole sectors."""
        return -(-self.dim * 4 // SECTOR) * SECTOR

    def hit_rate(self, cache_bytes: float) -> float:
        """Share of row reads that find the row in a cache of this size, which holds rows in use at random."""
        in_use = self.row_bytes * min(self.rows, self.sets * self.batch * self.bag)
        return min(1.0, cache_bytes / in_use)


@dataclass(frozen=True)
class LookupModel:
    """The fitted constants; seconds, but for `cache_bytes` and the exponent `power`.

    Attributes:
        launch: of a kernel that does nothing. bandwidth: of DRAM, bytes a second. Both measured, not fitted.
        cache_bytes: of the L2 that hold rows.
        start: from a warp's start to its first row, and from its last row to its end.
        hit_latency, miss_latency: of a row that is in the L2, or is not.
        chunk: of all multiprocessors together, for one more chunk.
        hit_segment, miss_segment: likewise, for one more row of a chunk.
        power: how sharply latency and throughput take over from each other.
    """

    launch: float
    bandwidth: float
    cache_bytes: float
    start: float
    hit_latency: float
    miss_latency: float
    chunk: float
    hit_segment: float
    miss_segment: float
    power: float

    def seconds(self, sizes: BagSizes) -> float:
        """Seconds of one lookup."""
        hit = sizes.hit_rate(self.cache_bytes)
        latency = self.start + sizes.bag * (hit * self.hit_latency + (1 - hit) * self.miss_latency)
        segment = hit * self.hit_segment + (1 - hit) * self.miss_segment
        chunks = sizes.batch * -(-sizes.dim // WARP_COLUMNS)
        rows_read = sizes.batch * sizes.bag * sizes.row_bytes
        # Every index is read, and the kernel writes down for each to which bag it belongs.
        beside = 2 * INDEX_BYTES * sizes.batch * sizes.bag + sizes.row_bytes * sizes.batch
        dram = ((1 - hit) * rows_read + beside) / self.bandwidth
        throughput = max(chunks * (self.chunk + sizes.bag * segment), dram)
        return self.launch + (latency**self.power + throughput**self.power) ** (1 / self.power)


FIRST_GUESS = (45e6, 1e-6, 1.5e-7, 3e-7, 4e-10, 5e-11, 7e-11, 2.0)
SOFT_ERROR = 0.1


def fit(measured: Iterable[Measured], launch: float, bandwidth: float) -> LookupModel:
    """The model whose relative errors on measured lookups are least; errors beyond 10 % weigh linearly.

    Raises:
        ValueError: fewer lookups than constants.
    """
    lookups = [
        (BagSizes.of(**m.point.sizes), m.median) for m in measured if m.point.family == "embedding_bag"
    ]
    if len(lookups) < len(fields(LookupModel)):
        raise ValueError(
            f"{len(lookups)} measured lookups cannot fit {len(FIRST_GUESS)} constants: measure more"
        )
    seconds = np.log([each for _, each in lookups])

    def errors(logarithms: np.ndarray) -> np.ndarray:
        model = LookupModel(launch, bandwidth, *np.exp(logarithms))
        return np.log([model.seconds(sizes) for sizes, _ in lookups]) - seconds

    found = least_squares(errors, np.log(FIRST_GUESS), loss="soft_l1", f_scale=SOFT_ERROR)
    return LookupModel(launch, bandwidth, *map(float, np.exp(found.x)))


def constants(model: LookupModel) -> dict[str, float]:
    """The model's constants by name, for a report."""
    return dict(zip((field.name for field in fields(model)), astuple(model), strict=True))
