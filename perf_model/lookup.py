"""A fitted model of PyTorch's embedding-bag kernel on a GPU with a large L2.

One warp works on 32 columns of a bag, a chunk, and reads the bag's rows one after the other. Each row costs
the latency of the L2 or of DRAM. The rate of row segments bounds all warps together. The notebook's predictor
(`perf_model.embedding`) models bandwidth only, which this kernel does not reach.

    seconds = launch + (latency^p + throughput^p)^(1/p)
    latency = start + bag * (hit * hit_latency + (1 - hit) * miss_latency)
    segment = hit * hit_segment + (1 - hit) * miss_segment
    throughput = max(chunks * (chunk + bag * segment), DRAM bytes / bandwidth)

The hit rate is that of random rows in a cache of `cache_bytes`. The rows in use are those of the table, or
those read before a set of indices repeats, if those are fewer. The constants are fitted to measured lookups
of other sizes.
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
        rows, dim: rows and columns of the table. bag: indices of a bag. batch: number of bags.
        sets: number of sets of indices in rotation, which delay the reuse of rows.
    """

    rows: int
    dim: int
    bag: int
    batch: int
    sets: int

    @classmethod
    def of(cls, rows: int, dim: int, bag: int, batch: int) -> BagSizes:
        """Sizes of a measured point, with the number of index sets of its timing."""
        return cls(rows, dim, bag, batch, index_sets(bag, batch, dim, rows))

    @property
    def row_bytes(self) -> int:
        """Bytes of a read of one row, in whole sectors."""
        return -(-self.dim * 4 // SECTOR) * SECTOR

    def hit_rate(self, cache_bytes: float) -> float:
        """Share of row reads that hit a cache of this size, which holds random rows in use."""
        in_use = self.row_bytes * min(self.rows, self.sets * self.batch * self.bag)
        return min(1.0, cache_bytes / in_use)


@dataclass(frozen=True)
class LookupModel:
    """The constants of the model: seconds, except for `bandwidth`, `cache_bytes` and the exponent `power`.

    Attributes:
        launch: an empty kernel (measured). bandwidth: DRAM, bytes a second (measured). All others are fitted.
        cache_bytes: bytes of the L2 that hold rows.
        start: a warp without its rows.
        hit_latency, miss_latency: a row inside and outside of the L2.
        chunk: one more chunk, for all multiprocessors together.
        hit_segment, miss_segment: one more row of a chunk, for all multiprocessors together.
        power: sharpness of the transition between latency and throughput.
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
        # The kernel reads every index and writes the number of its bag.
        beside = 2 * INDEX_BYTES * sizes.batch * sizes.bag + sizes.row_bytes * sizes.batch
        dram = ((1 - hit) * rows_read + beside) / self.bandwidth
        throughput = max(chunks * (self.chunk + sizes.bag * segment), dram)
        return self.launch + (latency**self.power + throughput**self.power) ** (1 / self.power)


FIRST_GUESS = (45e6, 1e-6, 1.5e-7, 3e-7, 4e-10, 5e-11, 7e-11, 2.0)
SOFT_ERROR = 0.1


def fit(measured: Iterable[Measured], launch: float, bandwidth: float) -> LookupModel:
    """The model with the least relative errors on measured lookups; errors beyond 10 % weigh linearly.

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
    seconds = np.log([median for _, median in lookups])

    def errors(logarithms: np.ndarray) -> np.ndarray:
        model = LookupModel(launch, bandwidth, *np.exp(logarithms))
        return np.log([model.seconds(sizes) for sizes, _ in lookups]) - seconds

    solution = least_squares(errors, np.log(FIRST_GUESS), loss="soft_l1", f_scale=SOFT_ERROR)
    return LookupModel(launch, bandwidth, *map(float, np.exp(solution.x)))


def constants(model: LookupModel) -> dict[str, float]:
    """The model's constants by name, for a report."""
    return dict(zip((field.name for field in fields(model)), astuple(model), strict=True))
