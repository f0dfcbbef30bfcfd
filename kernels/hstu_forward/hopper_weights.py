"""A model's parameters in the layouts of the CUDA C++ kernels in `hopper/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from kernels.hstu_attention.buckets import bucket_table
from kernels.hstu_forward.parameters import Parameters
from kernels.hstu_forward.weights import POSITION_PAD, BlockWeights, Shape, time_weights_of

# Columns of u, of q, of v and of k that a thread block computes, and of a chunk of an embedding, as stored.
WIDTH = 64
# Most thread blocks that share a row's columns.
MOST_SHARES = 8
# Entries of a block's time weights; the last is NaN, the weight of times too far apart.
BUCKETS = 256
# Inner indices of a stage of the wide kernel's weights, and such spans in a stage of the output.
_SPAN, _SPANS_OF_OUTPUT = 32, 4


@dataclass(frozen=True)
class Weights:
    """All blocks' parameters, one behind the other. A head has `head_size` columns, the missing ones zero.

    Attributes:
        shares: thread blocks that share a row's columns: 1 in the kernel for narrow models, 2, 4 or 8 in the
            one for wide models.
        chunks: an embedding has chunks * WIDTH columns, as stored.
        uvqk: (blocks, parts, 4 * WIDTH, WIDTH), in the order u, q, v, k; `swizzled`. In the wide kernel the
            `stream_of` all products.
        output: (blocks, parts, WIDTH, WIDTH); `swizzled`. None in the wide kernel.
        output_bias: (blocks, chunks * WIDTH) float32.
        position_weights: (blocks, ...), rows of `BlockWeights.position_weights` behind zeros: a copy starts
            and ends at a multiple of 16 bytes. Number `position_zero` is of distance 0.
        time_weights: (blocks, BUCKETS) float32; zeros without time weights.
        buckets: entries of `buckets.bucket_table`, or None without time weights.
    """

    head_size: int
    shares: int
    chunks: int
    uvqk: torch.Tensor
    output: torch.Tensor | None
    output_bias: torch.Tensor
    position_weights: torch.Tensor
    position_zero: int
    time_weights: torch.Tensor
    buckets: torch.Tensor | None
    shift: int


def num_buckets_of(state: Mapping[str, torch.Tensor], num_blocks: int) -> int:
    """The most time buckets of a block, 0 without time weights."""
    raw = (time_weights_of(state, number) for number in range(num_blocks))
    return max(0 if x is None else x.numel() - 1 for x in raw)


def head_size_of(shape: Shape) -> int:
    """Columns of a head as stored: a power of two of at least 8, or 16 in a wide model."""
    size = max(8, 1 << (max(shape.attention_dim, shape.linear_dim) - 1).bit_length())
    return size if max(shape.embedding_dim, shape.num_heads * size) <= WIDTH else max(16, size)


def columns_of(shape: Shape) -> int:
    """Columns of all heads, as stored."""
    return shape.num_heads * head_size_of(shape)


def shares_of(shape: Shape) -> int:
    """Thread blocks that share a row's columns: a power of two, 1 for a narrow model."""
    if max(columns_of(shape), shape.embedding_dim) <= WIDTH:
        return 1
    return max(2, 1 << (-(-columns_of(shape) // WIDTH) - 1).bit_length())


def chunks_of(shape: Shape) -> int:
    """Chunks of WIDTH columns of an embedding, as many in each thread block."""
    shares = shares_of(shape)
    return -(-shape.embedding_dim // (WIDTH * shares)) * shares


def weights_of(state: Mapping[str, torch.Tensor], parameters: Parameters) -> Weights:
    """The weights of a model that `hopper_launch.refusal` takes."""
    shape, blocks = parameters.shape, parameters.blocks
    raw = [time_weights_of(state, number) for number in range(len(blocks))]
    num_buckets = num_buckets_of(state, len(blocks))
    device, shares = parameters.item_weights.device, shares_of(shape)
    time_weights = torch.zeros(len(blocks), BUCKETS)
    for row, x in zip(time_weights, raw, strict=True):
        if x is not None:
            row[: x.numel()] = x.float()
            row[-1] = torch.nan
    zero = POSITION_PAD + blocks[0].width - 1
    front = -zero % 4
    positions = torch.stack([block.position_weights for block in blocks])
    table = bucket_table(num_buckets, parameters.settings.bucket_divisor) if num_buckets else None
    projections = [uvqk_of(block.uvqk, shape) for block in blocks]
    outputs = [output_of(block, shape) for block in blocks]
    dim = chunks_of(shape) * WIDTH
    if shares == 1:
        uvqk, output = swizzled(torch.stack(projections)), swizzled(torch.stack(outputs))
    else:
        uvqk, output = stream_of(projections, outputs, shares), None
    return Weights(
        head_size=head_size_of(shape),
        shares=shares,
        chunks=chunks_of(shape),
        uvqk=uvqk,
        output=output,
        output_bias=torch.stack([_sized(block.output_bias.float(), 0, dim) for block in blocks]),
        position_weights=pad(positions, (front, -(positions.size(1) + front) % 4)),
        position_zero=zero + front,
        time_weights=time_weights.to(device),
        buckets=None if table is None else table.entries.to(device),
        shift=0 if table is None else table.shift,
    )


def uvqk_of(stored: torch.Tensor, shape: Shape) -> torch.Tensor:
    """`BlockWeights.uvqk` -> (parts, 4 * columns, D): heads of `head_size_of` columns, sizes as stored."""
    keys, values = shape.num_heads * shape.kp, shape.num_heads * shape.vp
    split = stored.split([values, keys, values, keys], dim=1)
    dims = (shape.vp, shape.kp, shape.vp, shape.kp)
    heads = [
        _heads_of(x.transpose(1, 2), shape, dim).transpose(1, 2) for x, dim in zip(split, dims, strict=True)
    ]
    return _sized(torch.cat(heads, dim=1), 2, chunks_of(shape) * WIDTH)


def output_of(block: BlockWeights, shape: Shape) -> torch.Tensor:
    """`BlockWeights.output` -> (parts, D, columns), sizes as of `uvqk_of`."""
    return _sized(_heads_of(block.output, shape, shape.vp), 1, chunks_of(shape) * WIDTH)


def swizzled(x: torch.Tensor) -> torch.Tensor:
    """(..., rows, WIDTH) with each row's chunks of 8 elements where `chunk_at` of the kernel finds them."""
    row, chunk = torch.arange(x.size(-2), device=x.device)[:, None], torch.arange(8, device=x.device)
    # An exclusive or is its own inverse.
    source = chunk ^ (row & 1) << 2 ^ (row >> 3 & 1) << 1
    return x.unflatten(-1, (8, 8)).gather(-2, source[..., None].expand(*x.shape[:-1], 8, 8)).flatten(-2)


def stream_of(projections: list[torch.Tensor], outputs: list[torch.Tensor], shares: int) -> torch.Tensor:
    """(shares, blocks, stages, parts * 4 * WIDTH * 32): each thread block's weights in the order of use.

    A stage of a projection has the thread block's columns of u, q, v and k and 32 inner indices, (parts,
    4 * WIDTH, 32). One of the output has WIDTH of its columns and 4 such spans, (parts, 4, WIDTH, 32).

    Args:
        projections, outputs: of `uvqk_of` and `output_of`, for each block.
    """
    streams = []
    for projection, output in zip(projections, outputs, strict=True):
        parts, dim = projection.size(0), projection.size(2)
        # parts, kind, share, column, span, index
        own = projection.view(parts, 4, shares, WIDTH, dim // _SPAN, _SPAN).permute(2, 4, 0, 1, 3, 5)
        # parts, share, chunk, column, stage, span, index
        spans = (output.size(2) // (_SPANS_OF_OUTPUT * _SPAN), _SPANS_OF_OUTPUT, _SPAN)
        last = output.view(parts, shares, dim // (shares * WIDTH), WIDTH, *spans).permute(1, 2, 4, 0, 5, 3, 6)
        size = parts * 4 * WIDTH * _SPAN
        streams.append(torch.cat([own.reshape(shares, -1, size), last.reshape(shares, -1, size)], dim=1))
    return torch.stack(streams, dim=1).contiguous()


def _heads_of(x: torch.Tensor, shape: Shape, stored: int) -> torch.Tensor:
    """(..., heads * stored) -> (..., shares * WIDTH). What a smaller head cuts off is padding."""
    size = head_size_of(shape)
    heads = x.unflatten(-1, (shape.num_heads, stored))[..., :size]
    flat = pad(heads, (0, size - heads.size(-1))).flatten(-2)
    return pad(flat, (0, shares_of(shape) * WIDTH - flat.size(-1)))


def _sized(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """A dimension's first `size` elements, or zeros behind its end. What is cut off is padding."""
    return pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, size - x.size(dim))).contiguous()
