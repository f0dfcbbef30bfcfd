"""The parameters of research HSTU by their public names, padded for the kernels' blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kernels.hstu_attention.buckets import bucket_table

# Bit patterns of float32.
_ONE, _INFINITY, _NAN = 0x3F800000, 0x7F800000, 0x7FC00000
# Positions that a kernel's blocks may reach beyond the first and the last: a block's rows or columns.
POSITION_PAD = 256
# A position's weight for a column after the row: SiLU of its sum with any product and time is -0.
UNSEEN = -1e30
# Scale of factors of two parts, see `triton_kernel_products`.
FACTOR_SCALE = 32.0
# Least width of a product's factor.
_TILE = 16
_LAYER = "_hstu._attention_layers."


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. dp, kp, vp: D, K, V as stored, powers of two.

    A tile of a tensor core is 16 elements wide. `pack` heads of at most 8 elements share one: each is stored
    in 16 / pack elements. All other sizes are 16 or more.
    """

    num_blocks: int
    num_heads: int
    attention_dim: int
    linear_dim: int
    embedding_dim: int

    @property
    def dp(self) -> int:
        return _padded(self.embedding_dim)

    @property
    def pack(self) -> int:
        """Heads of a tile: a power of two that divides their number."""
        most = _TILE // _power_of_two(max(self.attention_dim, self.linear_dim))
        return max(1, min(most, self.num_heads & -self.num_heads))

    @property
    def kp(self) -> int:
        return _padded(self.attention_dim) if self.pack == 1 else _TILE // self.pack

    @property
    def vp(self) -> int:
        return _padded(self.linear_dim) if self.pack == 1 else _TILE // self.pack

    @property
    def gates(self) -> int:
        """Columns of u, as stored."""
        return self.num_heads * self.vp

    @property
    def factors(self) -> int:
        """Columns of q, v and k together, as stored."""
        return self.num_heads * (2 * self.kp + self.vp)


@dataclass(frozen=True)
class BlockWeights:
    """One block's parameters, padded.

    Attributes:
        uvqk: (parts, gates + factors, dp), the transposed public parameter in the order u, q, v, k.
        output: (parts, dp, H * vp). Two parts are float16 numbers whose sum is a float32.
        output_bias: (dp,).
        position_weights: (2 * width - 1 + 2 * POSITION_PAD,) float32. The first POSITION_PAD are zero. All
            weights behind that of distance 0 are UNSEEN, so that the bias is the causal mask as well.
        times: None without time weights.
    """

    uvqk: torch.Tensor
    output: torch.Tensor
    output_bias: torch.Tensor
    position_weights: torch.Tensor
    width: int
    times: TimeTable | None


@dataclass(frozen=True)
class TimeTable:
    """The table of `kernels.hstu_attention.buckets` with a block's weights in place of the buckets.

    A kernel finds the weight of a time difference with one lookup.

    Attributes:
        entries: (cells, 2) int64: low << 32 | edge, and high. low and high are the bits of the float32
            weights below and from the cell's edge on. A cell's number is the difference's bit pattern >>
            shift. The edge of a cell without one lies behind it, or is NaN. Cells below 1.0 have the first
            weight. Cells from 2^63 to infinity are NaN.
        shift: right shift from a pattern to its cell.
    """

    entries: torch.Tensor
    shift: int


def time_table(time_weights: torch.Tensor, bucket_divisor: float) -> TimeTable:
    """The table for one weight a bucket, on the weights' device."""
    table = bucket_table(time_weights.numel() - 1, bucket_divisor)
    entries = table.entries.to(time_weights.device)
    bucket, edge = entries >> 32, (entries & 0xFFFFFFFF) + _ONE
    bits = time_weights.float().view(torch.int32).to(torch.int64)
    # A cell without an edge never reads `high`: any weight will do behind the last.
    low, high = bits[bucket], bits[(bucket + 1).clamp(max=bits.numel() - 1)]
    weighted = torch.stack([(low << 32) | edge, high & 0xFFFFFFFF], dim=1)
    first, num_cells = _ONE >> table.shift, (_INFINITY >> table.shift) + 1
    cells = torch.full((num_cells, 2), _NAN << 32 | _NAN, dtype=torch.int64, device=weighted.device)
    cells[:first, 0] = bits[0] << 32 | _NAN
    cells[first : first + weighted.size(0)] = weighted
    return TimeTable(cells, table.shift)


def _power_of_two(dim: int) -> int:
    """The least power of two of at least `dim`."""
    return 1 << (dim - 1).bit_length()


def _padded(dim: int) -> int:
    return max(_TILE, _power_of_two(dim))


def model_shape(
    state: Mapping[str, torch.Tensor], num_heads: int, attention_dim: int, linear_dim: int
) -> Shape:
    """Sizes of a model, from its state dict and the sizes that it does not hold.

    Raises:
        ValueError: a key is missing, or a shape does not fit.
    """
    blocks = {name.removeprefix(_LAYER).split(".")[0] for name in state if name.startswith(_LAYER)}
    item = _take(state, "_embedding_module._item_emb.weight")
    shape = Shape(len(blocks), num_heads, attention_dim, linear_dim, item.size(1))
    if not blocks:
        raise ValueError(
            f"state dict: no key starts with {_LAYER!r}; give one of research HSTU's public names"
        )
    d, hv = shape.embedding_dim, num_heads * linear_dim
    expected = {"_uvqk": (d, 2 * hv + 2 * num_heads * attention_dim), "_o.weight": (d, hv), "_o.bias": (d,)}
    for block in range(shape.num_blocks):
        for name, wanted in expected.items():
            shape_ = tuple(_take(state, f"{_LAYER}{block}.{name}").shape)
            if shape_ != wanted:
                raise ValueError(
                    f"{_LAYER}{block}.{name}: shape {shape_}, but num_heads={num_heads}, "
                    f"attention_dim={attention_dim}, linear_dim={linear_dim} and D={d} give {wanted} "
                    "(concat_ua has no fused forward)"
                )
    return shape


def time_weights_of(state: Mapping[str, torch.Tensor], block: int) -> torch.Tensor | None:
    """A weight for each time bucket, (num_buckets + 1,), if the block has them."""
    return state.get(f"{_LAYER}{block}._rel_attn_bias._ts_w")


def block_weights(
    state: Mapping[str, torch.Tensor],
    block: int,
    shape: Shape,
    num_parts: int,
    dtype: torch.dtype,
    bucket_divisor: float,
) -> BlockWeights:
    """One block's parameters on the state dict's device, with products' factors in `num_parts` parts."""
    prefix = f"{_LAYER}{block}."
    heads, k, v = shape.num_heads, shape.attention_dim, shape.linear_dim
    u, v_, q, k_ = _take(state, prefix + "_uvqk").split([heads * v, heads * v, heads * k, heads * k], dim=1)
    padded = ((u, shape.vp), (q, shape.kp), (v_, shape.vp), (k_, shape.kp))
    uvqk = torch.cat([_pad_heads(x, heads, pad) for x, pad in padded], dim=1)
    output = _pad_heads(_take(state, prefix + "_o.weight"), heads, shape.vp)
    bias = f"{prefix}_rel_attn_bias."
    position = state.get(bias + "_pos_w", state.get(bias + "_w"))
    if position is None:
        raise ValueError(f"state dict: {bias}_pos_w is missing; the fused forward needs a relative bias")
    times = time_weights_of(state, block)
    return BlockWeights(
        uvqk=_parts(_pad(uvqk.t(), columns=shape.dp), num_parts, dtype, prefix + "_uvqk"),
        output=_parts(_pad(output, rows=shape.dp), num_parts, dtype, prefix + "_o.weight"),
        output_bias=_pad(_take(state, prefix + "_o.bias").unsqueeze(0), columns=shape.dp).squeeze(0),
        position_weights=_causal(position),
        width=(position.numel() + 1) // 2,
        times=None if times is None else time_table(times, bucket_divisor),
    )


def _causal(position: torch.Tensor) -> torch.Tensor:
    """`BlockWeights.position_weights` from (2 * width - 1,); the last is for row 0, column width - 1."""
    seen, unseen = position.float().split([(position.numel() + 1) // 2, position.numel() // 2])
    front = torch.nn.functional.pad(seen, (POSITION_PAD, 0))
    return torch.nn.functional.pad(front, (0, unseen.numel() + POSITION_PAD), value=UNSEEN)


def _take(state: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in state:
        raise ValueError(f"state dict: {name} is missing; give one of research HSTU's public names")
    return state[name]


def _pad(x: torch.Tensor, rows: int | None = None, columns: int | None = None) -> torch.Tensor:
    rows, columns = rows or x.size(0), columns or x.size(1)
    return torch.nn.functional.pad(x, (0, columns - x.size(1), 0, rows - x.size(0))).contiguous()


def _pad_heads(x: torch.Tensor, heads: int, pad: int) -> torch.Tensor:
    """(rows, heads * dim) -> (rows, heads * pad), each head's columns followed by zeros."""
    split = x.reshape(x.size(0), heads, -1)
    return torch.nn.functional.pad(split, (0, pad - split.size(2))).reshape(x.size(0), heads * pad)


def _parts(x: torch.Tensor, num_parts: int, dtype: torch.dtype, name: str) -> torch.Tensor:
    """(num_parts, ...): the tensor in `dtype`, or float16's h and l, see `triton_kernel_products`."""
    if num_parts == 2:
        x = x * FACTOR_SCALE
    high = x.to(dtype)
    if not bool(high.isfinite().all()):
        most = torch.finfo(dtype).max / (FACTOR_SCALE if num_parts == 2 else 1.0)
        raise ValueError(f"{name}: an element is beyond {most:,.0f}, or NaN; use dot_precision='ieee'")
    if num_parts == 1:
        return high.unsqueeze(0)
    return torch.stack([high, (x - high.float()).to(dtype)])
