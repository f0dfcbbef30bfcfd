"""The notebook's prediction of embedding lookups: traffic over bandwidth, with a model of the L2's hit rate.

The notebook models DLRM on a V100 from traces, with the helpers of github.com/owensgroup/ml_perf_model. This
module has its formulas and gives its printed numbers. The kernel is a table-batched embedding bag of int32
indices and float32 rows. It has one warp a bag and moves sectors of 32 bytes. `perf_model.lookup` models
PyTorch's kernel on current GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

SECTOR = 32
"""Smallest number of bytes that DRAM and L2 move."""
OFFSETS_TRAFFIC = TABLE_OFFSETS_TRAFFIC = SECTOR


@dataclass(frozen=True)
class NotebookGPU:
    """Constants of the notebook's predictors; the defaults describe its GPU.

    Attributes:
        dram_bandwidth, l2_bandwidth: GB/s. throughput: GFLOP/s.
        l2_size: bytes. multiprocessors: count.
    """

    dram_bandwidth: float = 809
    l2_bandwidth: float = 2888
    throughput: float = 12200
    l2_size: int = 6 * 1024 * 1024 * 4
    multiprocessors: int = 80


@dataclass(frozen=True)
class Lookup:
    """A table-batched lookup: `num_tables` tables of equal size, `batch_size` bags of `bag_size` in each.

    Attributes:
        num_embeddings: rows of a table. embedding_dim: its columns, float32.
        rows_per_block: bags of a thread block, which the notebook equates with warps of a multiprocessor.
    """

    batch_size: int
    num_embeddings: int
    num_tables: int
    bag_size: int
    embedding_dim: int
    rows_per_block: int


def hit_rate(cached_rows: int, num_embeddings: int, bag_size: int) -> float:
    """Probability that all rows of a bag are cached: C(cached, bag) / C(rows, bag)."""
    rate = 1.0
    for drawn in range(bag_size):
        if cached_rows <= drawn:
            return 0.0
        rate *= (cached_rows - drawn) / (num_embeddings - drawn)
    return rate


def _sectors(nbytes: int) -> int:
    return int((nbytes + SECTOR - 1) / SECTOR) * SECTOR


def forward_microseconds(lookup: Lookup, gpu: NotebookGPU = NotebookGPU()) -> float:  # noqa: B008
    """Microseconds of a forward: the larger of its DRAM and its L2 traffic, each over its bandwidth.

    The tables that are read at one time share the L2. The cached part of a table is read from DRAM once. A
    bag is read from the L2 if all its rows are cached.
    """
    warps_at_once = gpu.multiprocessors * lookup.rows_per_block
    tables_at_once = (warps_at_once + lookup.batch_size - 1) // lookup.batch_size
    table_bytes = lookup.num_embeddings * lookup.embedding_dim * 4
    cached_bytes = min(gpu.l2_size // tables_at_once, table_bytes)
    hits = hit_rate(cached_bytes // 4 // lookup.embedding_dim, lookup.num_embeddings, lookup.bag_size)
    row = _sectors(lookup.embedding_dim * 4)
    rows_read = lookup.bag_size * row * lookup.batch_size - cached_bytes
    l2 = (TABLE_OFFSETS_TRAFFIC + OFFSETS_TRAFFIC) * lookup.batch_size + hits * rows_read
    dram = (_sectors(lookup.bag_size * 4) + row) * lookup.batch_size + (1 - hits) * rows_read + cached_bytes
    return max(
        dram * lookup.num_tables / gpu.dram_bandwidth / 1000.0,
        l2 * lookup.num_tables / gpu.l2_bandwidth / 1000.0,
    )


def backward_sgd_microseconds(lookup: Lookup, gpu: NotebookGPU = NotebookGPU()) -> float:  # noqa: B008
    """Microseconds of a backward fused with SGD, which reads and writes each row of a bag without cache hits.

    Each warp (one a bag) reads 32 bytes of offsets, 64 of table offsets and weights, its indices and its
    gradient.
    """
    row = _sectors(lookup.embedding_dim * 4)
    warp_traffic = 32 + 64 + _sectors(lookup.bag_size * 4) + 2 * lookup.bag_size * row + row
    warps = lookup.batch_size * lookup.num_tables
    macs = lookup.bag_size * 4 * (lookup.embedding_dim // 4)
    return max(warps * warp_traffic / gpu.dram_bandwidth / 1000, warps * macs / gpu.throughput / 1000)
