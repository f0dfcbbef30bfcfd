"""Block sizes and compiler options of the attention kernel, from the sizes of a call.

benchmarks/results/ has the measurements behind the choices: hstu_kernels.md, drawn_shapes.md.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from kernels.hstu_attention.masks import ProductionMask, ResearchMask

HALF_TYPES = (torch.float16, torch.bfloat16)
# (sequence, heads) pairs that run side by side.
_GROUP = 64
# Bytes of keys and values of the pairs side by side: the cache of a large GPU, about. The wider the heads,
# the more queries and results share it, and the fewer pairs fit it. Many programs of wide heads read and
# write so much at once that the least group is the best one, or twice that without a window where programs
# are not very many and all keys and values fit; fewer programs would wait for its last block.
_HELD_BYTES = 48 << 20
LEAST_GROUP = 16
_MOST_GROUP = {"small": 256, "narrow": 128, "wide": 64}
MOST_GROUP_OF_WINDOW = 32
# Number of programs that fill a large GPU once.
_MANY_PROGRAMS = 132
# Sequences up to here are a few blocks. Their schedule is for programs that fill a large GPU fewer times than
# this: of wide heads, two programs a multiprocessor run at once.
_SHORT = 512
_MOST_FILLS_OF_SHORT = {"small": 15.0, "narrow": 15.0, "wide": 2.0}
# Sequences up to here are one small block.
_TINY = 32
# Sequences up to here may be whole in a block of the kernel of tiny sequences. It has a power of two of rows,
# at least as many as a dot takes.
_LONGEST_PACKED = 64
_LEAST_ROWS = 16
# Average lengths from which programs have enough columns for large blocks, and from which their loop is most
# of a program's time.
_MIDDLE = 1024
_LONG = 4096
# Shared memory beside queries, keys and values: barriers, and the weights on their way to the second product.
_BARRIER_BYTES = 4096
# Least columns of a program that shares them with others, and most programs that do.
_COLUMNS_OF_SPLIT = 256
MOST_SPLITS = 32
# Average length from which two programs share columns without a cache, and fills of a large GPU up to which.
_LEAST_ROWS_TO_SPLIT = 4096
_FILLS_TO_SPLIT = 3.0
# Programs, in fills of a large GPU, that are very few, few, as many as run at once with wide heads and large
# blocks, as many as run at once with small blocks, many, and enough to hide a latency.
_FILLS = (0.25, 1.0, 2.0, 4.0, 12.0, 32.0)
LONG_LENGTHS = ("long", "longest")
# Windows below this number of columns are a few blocks, most of them cut.
_NARROW_WINDOW = 512


@dataclass(frozen=True)
class Schedule:
    """Block sizes and compiler options of the kernel; of the result they change the order of sums only.

    registers: most registers of a thread; 0 leaves the number to the compiler. packed: sequences of a program
    of the kernel of tiny sequences, together at most block_m rows; 0 is the other kernel. one_loop: one loop
    over all blocks of columns, of the other kernel without contextual rows and without splits. ahead: the
    kernel of `ahead`, which starts the next block's product in front of this block's second one.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    group: int = 1
    sigmoid: str = "exact"
    use_tma: bool = False
    heads: int = 1
    splits: int = 1
    registers: int = 0
    packed: int = 0
    one_loop: bool = False
    ahead: bool = False


def padded_dim(dim: int) -> int:
    """A head's size in the kernel: the next power of two, at least 16, the least size of a dot."""
    return max(16, 1 << (dim - 1).bit_length())


def takes_descriptor(x: torch.Tensor) -> bool:
    """Whether heads lie side by side without padding, and rows are aligned to 16 bytes."""
    aligned = x.stride(0) * x.element_size() % 16 == 0 and x.data_ptr() % 16 == 0
    return aligned and x.stride(1) == x.size(2) == padded_dim(x.size(2))


class Pack(NamedTuple):
    """What a program of the kernel of tiny sequences takes: a block of rows with whole sequences; heads."""

    rows: int
    sequences: int
    heads: int


def pack_of(
    q: torch.Tensor,
    v: torch.Tensor,
    max_seq_len: int,
    mask: ResearchMask | ProductionMask,
    sequences: int,
) -> Pack | None:
    """The pack of a call without a cache, or None where the other kernel is faster or the only one.

    A program's loop over heads hides their loads, as long as programs fill a large GPU once.
    """
    if max_seq_len > _LONGEST_PACKED or q.dtype not in HALF_TYPES or not isinstance(mask, ProductionMask):
        return None
    total, heads, k_dim = q.shape
    if not (total and sequences and max_seq_len):
        return None
    rows = max(_LEAST_ROWS, 1 << (max_seq_len - 1).bit_length())
    packed = rows // max_seq_len
    programs = -(-sequences // packed) * heads
    widest = max(k_dim, v.size(2))
    together = 4 if widest > 64 or rows > _TINY else 2
    while together > 1 and (heads % together or programs < together * _MANY_PROGRAMS):
        together //= 2
    # Blocks of more rows gain by that loop alone.
    if rows > _TINY and (together == 1 or widest > 128):
        return None
    return Pack(rows, packed, together)


def _of_pack(pack: Pack, widest: int) -> Schedule:
    """Few warps: the blocks are small. With one head, fewer registers of a thread for more programs."""
    rows, packed, heads = pack
    is_wide = widest > 64
    warps = min(rows // _LEAST_ROWS * (2 if is_wide else 1), 4)
    stages = 2 if heads == 1 or (is_wide and rows > _TINY) else 3
    registers = 0
    if heads == 1 and is_wide and rows == _TINY:
        registers = 80 if widest <= 128 else 168
    return Schedule(rows, rows, warps, stages, heads=heads, registers=registers, packed=packed)


class SizeClass(NamedTuple):
    """The sizes that `choose_schedule` distinguishes.

    fills: number of bounds in `_FILLS` that the programs of 64 rows reach. lengths: "short", "tiny",
    "middle", "long" or "longest". group: (sequence, heads) pairs side by side.
    """

    fills: int
    lengths: str
    group: int


def programs_in_fills(q: torch.Tensor) -> float:
    """Programs of 64 rows of a head of q, (L, H, K), in fills of a large GPU."""
    return q.size(0) * q.size(1) / (64 * _MANY_PROGRAMS)


def size_class(q: torch.Tensor, v: torch.Tensor, max_seq_len: int, sequences: int) -> SizeClass:
    """The class of these inputs, of `sequences` sequences of at most `max_seq_len` rows.

    Without rows or sequences, programs are many and all sequences have the greatest length. Very many
    programs of short sequences count as long ones, or as tiny ones.
    """
    rows, _, k_dim = q.shape
    v_dim = v.size(2)
    average = max(1, rows // sequences) if rows and sequences else max(1, max_seq_len)
    filled = programs_in_fills(q) if rows else math.inf
    widest = max(k_dim, v_dim)
    width = "wide" if widest > 64 else "narrow" if widest > 32 else "small"
    is_short = max_seq_len <= _SHORT and not (rows and filled >= _MOST_FILLS_OF_SHORT[width])
    lengths = "middle" if average < _MIDDLE else "long" if average < _LONG else "longest"
    if is_short or max_seq_len <= _TINY:
        lengths = "short" if is_short else "tiny"
    held = _HELD_BYTES / (average * (k_dim + v_dim) * q.element_size())
    group = 1 << max(0, round(math.log2(held)))
    fills = bisect.bisect_right(_FILLS, filled)
    most = _MOST_GROUP[width]
    if width == "wide" and fills >= 5:
        most = 2 * LEAST_GROUP if fills == 5 and held >= 2 * LEAST_GROUP else LEAST_GROUP
    return SizeClass(fills, lengths, min(max(group, LEAST_GROUP), most))


def is_narrow(window: int) -> bool:
    """Whether a window of this many columns is a few blocks, most of them cut; 0 is no window."""
    return 0 < window < _NARROW_WINDOW


def fitting(schedule: Schedule, q: torch.Tensor, v: torch.Tensor, shared_bytes: int) -> Schedule:
    """The schedule, with as many stages as a program's shared memory holds, at least one."""
    k_dim, v_dim = padded_dim(q.size(2)), padded_dim(v.size(2))
    of_queries = schedule.block_m * k_dim * q.element_size()
    of_stage = schedule.block_n * (k_dim + v_dim) * q.element_size()
    stages = max(1, (shared_bytes - of_queries - _BARRIER_BYTES) // of_stage)
    return replace(schedule, num_stages=min(schedule.num_stages, stages))


def choose_schedule(
    q: torch.Tensor,
    v: torch.Tensor,
    max_seq_len: int,
    mask: ResearchMask | ProductionMask,
    sequences: int = 0,
    may_pack: bool = True,
) -> Schedule:
    """The schedule for these inputs, with the copy engine where it is faster; see `with_descriptors`.

    Inputs without rows stand for any number of rows, for compilation ahead of time. Without `may_pack`, as
    with a cache, the kernel of tiny sequences cannot run.
    """
    is_half = q.dtype in HALF_TYPES
    # The interpreter runs on the CPU and has no assembly.
    sigmoid = "half" if is_half and q.device.type != "cpu" else "exact"
    widest = max(padded_dim(q.size(2)), padded_dim(v.size(2)))
    pack = pack_of(q, v, max_seq_len, mask, sequences) if may_pack else None
    if pack is not None:
        return replace(_of_pack(pack, widest), sigmoid=sigmoid)
    size = size_class(q, v, max_seq_len, sequences)
    has_few = size.fills < 2
    if not is_half or isinstance(mask, ResearchMask) or widest > 128:
        if has_few:
            # The longest program decides the time of a call: small blocks.
            return Schedule(16, 32, num_warps=4, num_stages=1, group=_GROUP, sigmoid=sigmoid)
        return _of_many(q, mask, widest, sigmoid)
    return replace(_production(size, widest, has_few, mask), sigmoid=sigmoid)


def _of_many(q: torch.Tensor, mask: ResearchMask | ProductionMask, widest: int, sigmoid: str) -> Schedule:
    """Many programs of float32, of the research mask, or of heads beyond 128."""
    if q.dtype == torch.float32:
        block_m, block_n = (64, 32) if widest <= 64 else (32, 32) if widest <= 128 else (16, 16)
        return Schedule(block_m, block_n, num_warps=4, num_stages=1, group=_GROUP)
    heads = 2 if isinstance(mask, ResearchMask) and q.size(1) % 2 == 0 and widest <= 64 else 1
    return Schedule(64, 32, num_warps=4, num_stages=2, group=_GROUP, sigmoid=sigmoid, heads=heads)


def _production(size: SizeClass, widest: int, has_few: bool, mask: ProductionMask) -> Schedule:
    """Half types, heads of up to 128. Making two descriptors takes the host longer than short rows take the
    GPU: only longer rows use the copy engine."""
    window, has_context = mask.max_attn_len, mask.contextual_seq_len > 0
    if has_context:
        # The block of these rows reads a whole history: fewer of them fit the cache.
        size = size._replace(group=min(size.group, _MOST_GROUP["wide"]))
    if has_few and size.lengths == "short":
        return Schedule(16, 64, num_warps=4, num_stages=2, group=_GROUP)
    if has_few:
        # The longest program decides the time of a call. A pipeline hides its loads.
        block_m = 32 if widest > 64 and size.fills else 16
        return Schedule(block_m, 64, num_warps=4, num_stages=3, group=_GROUP, use_tma=True)
    if size.lengths == "short":
        # All programs run at once. Programs of one multiprocessor have a fixed distance; with the pairs'
        # blocks in order, all multiprocessors get equal work.
        return Schedule(64, 64, num_warps=4, num_stages=2, group=256)
    if size.lengths == "tiny":
        # One block of columns: little work for four warps of narrow heads, and no time for descriptors.
        warps = 4 if widest > 64 else 2
        return Schedule(32, 32, num_warps=warps, num_stages=3, group=size.group, use_tma=widest > 64)
    if window and not has_context:
        return _of_window(size, widest, is_narrow(window))
    # Wide heads take large blocks while all programs run at once. Later they need their shared memory for
    # more programs. Small heads load faster without the copy engine.
    is_large = size.fills <= 2 if widest > 64 else size.fills <= 5 and size.lengths in LONG_LENGTHS
    return Schedule(
        64, 64 if is_large else 32, num_warps=4, num_stages=3, group=size.group, use_tma=widest > 32
    )


def _of_window(size: SizeClass, widest: int, is_few_blocks: bool) -> Schedule:
    """A window without contextual rows. It cuts blocks, and large ones waste more; the least with small heads
    and wide windows. A loop of few blocks leaves much time to its first loads: one loop has them once, and
    large blocks, or more programs a multiprocessor, fill the time."""
    fills, group = size.fills, size.group
    if widest > 64:
        if fills >= 5:
            group = min(group, LEAST_GROUP)
        if fills <= 2:
            return Schedule(64, 64, 4, num_stages=2, group=group, use_tma=True, one_loop=True)
        stages, registers = (2, 128) if is_few_blocks else (3, 0)
        return Schedule(64, 32, 4, stages, group=group, use_tma=True, registers=registers, one_loop=True)
    if is_few_blocks and fills <= 4:
        stages = 2 if widest > 32 else 3
        return Schedule(64, 64, 4, stages, group=group, use_tma=widest > 32, one_loop=True)
    if is_few_blocks and widest > 32:
        # As many programs of wide heads, these read and write much at once.
        group = min(group, MOST_GROUP_OF_WINDOW)
    is_large = not is_few_blocks and size.lengths in LONG_LENGTHS and fills <= (4 if widest > 32 else 5)
    return Schedule(64, 64 if is_large else 32, 4, num_stages=3, group=group, use_tma=widest > 32)


def splits_of_new_rows(programs: int, max_seq_len: int) -> int:
    """Programs that share the columns of a block of new rows behind a cache; a power of two.

    Args:
        programs: of 16 rows each, without such sharing.
        max_seq_len: most columns of a row.
    """
    most = min(_MANY_PROGRAMS // max(1, programs), max_seq_len // _COLUMNS_OF_SPLIT, MOST_SPLITS)
    return 1 << (max(1, most).bit_length() - 1)


def splits_of_call(q: torch.Tensor, mask: ResearchMask | ProductionMask, sequences: int) -> int:
    """Programs that share the columns of a block of rows without a cache: two for few and long sequences.

    There the longest program decides the time of a call. A window leaves few columns to share, but for
    the rows of a context.
    """
    if not isinstance(mask, ProductionMask) or (mask.max_attn_len and not mask.contextual_seq_len):
        return 1
    is_half = q.dtype in HALF_TYPES
    is_long = q.size(0) >= _LEAST_ROWS_TO_SPLIT * sequences
    is_few = programs_in_fills(q) < _FILLS_TO_SPLIT
    return 2 if is_half and is_long and is_few else 1
