"""The schedule of a forward: kernels, block sizes and compiler options, from the device and the shape.

benchmarks/results/hstu_forward.md and hstu_kernels.md have the measured alternatives.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from kernels.hstu_forward.parameters import Parameters
from kernels.hstu_forward.schedules import AttentionTile, Batch, EmbedTile, Schedule, Tile, Wide

# Rows up to this length have few blocks of columns: all their biases fit the registers.
_UNROLLED_ROWS = 256
# Elements of keys that a program may hold in shared memory beside as many of the values.
_HELD_KEYS = 32768
# Elements of weights that a program of 128 threads may hold in registers beside its sums.
_HELD_WEIGHTS = 16384
# Elements of a block's keys in a block's kernel, whose biases fill registers.
_UNROLLED_KEYS = 16384
# Rows of a block of `gluon_kernels`: those of a warpgroup's product.
_KEPT_ROWS = 64
# Bytes of a multiprocessor of compute capability 9.0, and of a program beside its tensors, or more.
_SHARED, _SCRATCH = 227 << 10, 4096
# The longest factor that a program of few rows multiplies at once.
_WHOLE_DEPTH = 256


def schedule(parameters: Parameters, batch: Batch, multiprocessors: int) -> Schedule:
    """The schedule of a batch on a GPU with so many multiprocessors."""
    is_small = has_few_blocks(batch, parameters, multiprocessors)
    if fits_block_kernel(parameters):
        programs = batch.sequences * batch.row_blocks(16)
        # Programs that share a row embed it anew: worth while only where they leave multiprocessors idle.
        embed = EmbedTile(16, groups=4 if 2 * programs <= multiprocessors else 1)
        if programs > 2 * multiprocessors:
            embed = EmbedTile(32)
        return Schedule(embed, block_tile(batch, parameters, multiprocessors))
    wide = Wide(
        project_tile(batch, parameters, multiprocessors),
        attention_tile(batch, parameters, multiprocessors),
        output_tile(batch, parameters, multiprocessors),
    )
    return Schedule(EmbedTile(16 if is_small else 32), wide)


def has_few_blocks(batch: Batch, parameters: Parameters, multiprocessors: int) -> bool:
    """Whether programs of 64 rows would leave multiprocessors idle, or one program's latency decide."""
    programs = batch.sequences * batch.row_blocks(64)
    return programs < (multiprocessors * 3 // 2 if _is_single(parameters) else multiprocessors)


def fits_block_kernel(parameters: Parameters) -> bool:
    """Whether one program has room for a row's heads, its embedding and their products."""
    shape = parameters.shape
    return max(shape.dp, shape.num_heads * max(shape.kp, shape.vp)) <= 64


def _by_fma(parameters: Parameters) -> bool:
    """Whether products are float32 multiply-adds."""
    return parameters.blocks[0].uvqk.dtype == torch.float32


def _is_single(parameters: Parameters) -> bool:
    """Whether a product is a single one of half types on tensor cores."""
    return not _by_fma(parameters) and parameters.products.projections == 1


def has_warpgroup_products(parameters: Parameters) -> bool:
    """Whether the GPU has the instructions of `gluon_kernels`."""
    device = parameters.item_weights.device
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def _keeps_weights(parameters: Parameters) -> bool:
    """Whether `gluon_kernels` take the model: the whole output's weights fit beside two blocks of rows."""
    shape = parameters.shape
    is_one_type = parameters.blocks[0].uvqk.dtype == parameters.item_weights.dtype
    fits = 128 <= shape.dp <= 256 and 64 <= shape.gates <= 256 and shape.gates == _divisor(shape.gates)
    return is_one_type and _is_single(parameters) and fits and has_warpgroup_products(parameters)


def _unrolled_columns(batch: Batch) -> int:
    """Columns that hold the longest row."""
    return max(32, 1 << (batch.max_seq_len - 1).bit_length())


def block_tile(batch: Batch, parameters: Parameters, multiprocessors: int) -> AttentionTile:
    """The tile of a whole block in one kernel."""
    is_small = has_few_blocks(batch, parameters, multiprocessors)
    if _by_fma(parameters):
        return AttentionTile(16 if is_small else 64, 32, 4, 1)
    block_n = _unrolled_columns(batch)
    if block_n <= 64 or (is_small and batch.max_seq_len <= _UNROLLED_ROWS):
        # Few programs: the longest one decides the time of a launch, so that it has few rows and many warps.
        # With 8 warps, Triton 3.6 computes wrong results for 64 rows and narrow heads.
        programs = batch.sequences * batch.row_blocks(16)
        block_m = 32 if block_n <= 64 and programs > 2 * multiprocessors else 16
        warps = 8 if programs <= multiprocessors else 4
        shape = parameters.shape
        held = shape.pack * max(shape.kp, shape.vp) * parameters.products.attention
        block_n = min(block_n, max(64, _UNROLLED_KEYS // held))
        if _is_single(parameters) and warps == 4 and block_n > 128:
            # A loop leaves out the columns behind a program's rows.
            return AttentionTile(block_m, 128, warps, 1, block_c=128, is_ahead=True)
        return AttentionTile(block_m, block_n, warps, 1, block_c=128, is_unrolled=True)
    if is_small:
        return AttentionTile(16, 64, 4, 1)
    # Registers for four programs on a multiprocessor.
    return AttentionTile(64, 32, 4, 2, is_chained=True, max_registers=128)


def attention_tile(batch: Batch, parameters: Parameters, multiprocessors: int) -> AttentionTile:
    """The tile of an attention alone."""
    shape = parameters.shape
    widest, tiles = max(shape.kp, shape.vp), shape.num_heads // shape.pack
    if widest > 128:
        # Sums and queries of wide heads fill the registers of many threads.
        return AttentionTile(16 if widest > 256 else 32, 16 if _by_fma(parameters) else 32, 8, 1)
    wide_programs = batch.sequences * batch.row_blocks(64) * tiles
    is_small = wide_programs < multiprocessors and batch.max_seq_len <= _UNROLLED_ROWS
    # Keys of all columns lie in shared memory at once.
    fits = _unrolled_columns(batch) * widest * parameters.products.attention <= _HELD_KEYS
    if is_small and fits and not _by_fma(parameters):
        programs = batch.sequences * batch.row_blocks(16) * tiles
        is_latency = programs <= (multiprocessors if _is_single(parameters) else multiprocessors // 2)
        # Where values are no wider than the 16 rows, Triton gives every warp all columns of keys.
        is_narrow = _is_single(parameters) and shape.pack * shape.vp == 16
        warps, columns = 8 if is_latency and not is_narrow else 4, _unrolled_columns(batch)
        # Keys and values of float32 are twice as many bytes, and their products three times as many.
        splits = 2 if is_latency and not _is_single(parameters) and columns > 64 else 1
        return AttentionTile(
            16, columns // splits, warps, 1, is_unrolled=True, heads=shape.pack, splits=splits
        )
    if widest > 64:
        return AttentionTile(64, 32, 4, 1, heads=shape.pack)
    # Heads of a program share its bias, as long as the programs are enough.
    if tiles % 2 == 0 and wide_programs >= 8 * multiprocessors and not _by_fma(parameters):
        # 32 registers of sums, or 64 of a single product, and 128 in all: four programs on a multiprocessor.
        block_m = 64 if shape.pack * widest <= 32 or _is_single(parameters) else 32
        return AttentionTile(block_m, 32, 4, 2, heads=2 * shape.pack, max_registers=128)
    two = 2 if tiles % 2 == 0 and wide_programs >= 8 * multiprocessors else 1
    block_n = 32 if two > 1 or _by_fma(parameters) else 64
    stages = 3 if block_n == 64 and _is_single(parameters) else 2
    # The warps of two programs hide little of the biases' loads.
    is_ahead = wide_programs <= 2 * multiprocessors
    return AttentionTile(64, block_n, 4, stages, heads=two * shape.pack, is_ahead=is_ahead)


def project_tile(batch: Batch, parameters: Parameters, multiprocessors: int) -> Tile:
    """The tile of SiLU(XN W^T)."""
    shape = parameters.shape
    dp, width = shape.dp, shape.gates + shape.factors
    widest = _divisor(width)
    share = batch.rows * width / multiprocessors
    if share < 2 * 64 * 128:
        if share <= 2 * 16 * 64 and not (_by_fma(parameters) or _is_single(parameters)):
            # Three products a factor: smaller blocks, all at once.
            return replace(_few_rows(dp, share, 16, min(64, widest), parameters), num_warps=4)
        return _few_rows(dp, share, 32, min(128, widest), parameters)
    block_n = min(128, _divisor(shape.gates), _divisor(shape.factors))
    is_whole = block_n >= 64 and batch.cached is None and _keeps_weights(parameters)
    if is_whole and share >= 4 * 64 * 128:
        # As many programs as fit: the copies and products of some run under the others' SiLU.
        return Tile(_KEPT_ROWS, block_n, dp, 4, 1, programs=512 // dp * multiprocessors)
    if min(dp, widest) >= 128:
        if _is_single(parameters):
            # Three small programs fit a multiprocessor: copies hide behind the others' products.
            return Tile(64, 128, 64, 4, 3) if share > 8 * 64 * 128 else Tile(128, 128, 64, 8, 3)
        return Tile(64, 128, 64, 4, 2) if not _by_fma(parameters) else Tile(128, 128, 32, 8, 2)
    return Tile(64, min(64, widest), min(32, dp), 4, 2)


def _divisor(number: int) -> int:
    """The largest power of two that divides a number."""
    return number & -number


def _few_rows(depth: int, share: float, block_m: int, columns: int, parameters: Parameters) -> Tile:
    """The tile of a product of few rows: the whole depth at once, so that no load waits for another one.

    A long depth leaves room for few columns. Where whole columns are many programs, the depth is cut, and the
    block is the largest of which each multiprocessor has one.

    Args:
        share: elements of the product for each multiprocessor.
        block_m, columns: rows, and most columns, of a program of 8 warps.
    """
    widest, step = _divisor(columns), _divisor(depth)
    if _by_fma(parameters):
        return Tile(16, min(32, widest), min(32, step), 4, 2)
    if depth == step <= _WHOLE_DEPTH:
        return Tile(block_m, widest, depth, 8, 1)
    if depth == step and (whole := _whole_columns(depth, share, block_m, min(64, widest), parameters)):
        return whole
    if _is_single(parameters):
        # Blocks of 64 x 64 are slower than the more programs of 32 x 64.
        blocks = ((64, 128, 64), (32, 64, 128)) if widest >= 128 else ((32, 64, 128),)
    else:
        blocks = ((64, 128, 64), (64, 64, 64), (32, 64, 128))
    for rows, most, inner in blocks:
        if share >= rows * min(most, widest):
            stages = 3 if _is_single(parameters) else 2
            return Tile(rows, min(most, widest), min(inner, step), 4, stages)
    return Tile(16, min(64, widest), min(128, step), 4, 3)


def _whole_columns(depth: int, share: float, block_m: int, most: int, parameters: Parameters) -> Tile | None:
    """The tile of few rows of a deep product, of whole columns, or None where they fit badly.

    A multiprocessor holds two such programs or more, so that one loads while another multiplies. In half
    types a second round of programs costs less than a cut, for two parts, three products, it costs more.
    """
    parts = parameters.products.projections
    columns = min(most, 2 * _HELD_WEIGHTS // parts // depth)
    if columns < 16:
        return None
    rows = 16 if share <= 16 * columns else block_m
    held = _SHARED // (2 * parts * depth * (rows + columns) + _SCRATCH)
    rounds = 2 if _is_single(parameters) else 1
    if held < 2 or share > rounds * held * rows * columns:
        return None
    return Tile(rows, columns, depth, 8, 1)


def output_tile(batch: Batch, parameters: Parameters, multiprocessors: int) -> Tile:
    """The tile of the projection of the output."""
    shape = parameters.shape
    rows, depth = batch.rows / multiprocessors, _divisor(shape.gates)
    if rows < 16:
        return _few_rows(shape.gates, rows * shape.dp, 16, min(64, shape.dp), parameters)
    if _keeps_weights(parameters):
        memory = 2 * (shape.dp * shape.gates + _KEPT_ROWS * (shape.dp + shape.gates))
        fitting = min(3, _SHARED // (memory + _SCRATCH))
        # The larger the weights, the fewer the programs, and the more warps hide each other's waits.
        return Tile(_KEPT_ROWS, shape.dp, shape.gates, shape.dp // 16, 1, programs=fitting * multiprocessors)
    if shape.dp > 256:
        return Tile(64, 128, min(32 if _by_fma(parameters) else 64, depth), 4, 2)
    if shape.dp <= 64:
        return Tile(64 if rows >= 64 else 16, shape.dp, min(32, depth), 4, 3)
    if _is_single(parameters) and rows < 64:
        return Tile(16, shape.dp, min(64, depth), 4, 3)
    if _by_fma(parameters):
        return Tile(16 if rows < 64 else 32, shape.dp, min(32, depth), 4, 3)
    # Each program reads all weights: more rows, fewer reads.
    return Tile(32, shape.dp, min(64, depth), 8, 3 if _is_single(parameters) else 2)
