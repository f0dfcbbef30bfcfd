"""A forward's batch, and its schedule: kernels, block sizes and compiler options."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.hstu_forward.weights import POSITION_PAD


@dataclass(frozen=True)
class Cached:
    """The cache of a forward that appends rows.

    Attributes:
        qvk: for each block, (B, capacity, parts, factors): queries, values and keys of all positions.
        firsts: (B,) int, the first new position of each sequence.
        slots: (L,) int64, the row of each new position in a block's `qvk`.
        longest_new: most new positions of a sequence, or more.
    """

    qvk: tuple[torch.Tensor, ...]
    firsts: torch.Tensor
    slots: torch.Tensor
    longest_new: int

    @property
    def capacity(self) -> int:
        return self.qvk[0].size(1)


@dataclass(frozen=True)
class Batch:
    """The inputs of a forward, and its times in the form of `embed_kernel`.

    ids and offsets are those of the rows to compute: with a cache, of the new ones."""

    ids: torch.Tensor
    offsets: torch.Tensor
    timestamps: torch.Tensor
    max_seq_len: int
    times: torch.Tensor
    cached: Cached | None = None

    def row_blocks(self, block_m: int) -> int:
        """Blocks of so many rows in the sequence with the most rows to compute."""
        longest = self.max_seq_len if self.cached is None else self.cached.longest_new
        return -(-longest // block_m)

    @property
    def rows(self) -> int:
        return self.ids.numel()

    @property
    def sequences(self) -> int:
        return self.offsets.numel() - 1


@dataclass(frozen=True)
class Tile:
    """Block sizes and compiler options of a product.

    Attributes:
        programs: of `gluon_kernels`, which keep their weights and take the blocks of rows in turn; 0 for
            Triton's, one for each block. The former have the whole depth and no stages.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    programs: int = 0


@dataclass(frozen=True)
class AttentionTile:
    """Block sizes and compiler options of an attention.

    Attributes:
        block_m, block_n: rows and columns. block_c: columns of the next projection at a time.
        is_unrolled: whether the biases of all columns are computed first.
        heads: heads of a program in an attention alone.
        is_chained: whether the three products of a float32 share one sum.
        is_ahead: whether a loop computes biases before the previous block's products.
        splits: programs that share the columns of an attention alone, whose biases are computed first.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    block_c: int = 64
    is_unrolled: bool = False
    heads: int = 1
    is_chained: bool = False
    is_ahead: bool = False
    max_registers: int | None = None
    splits: int = 1

    def __post_init__(self) -> None:
        if self.splits > 1 and not self.is_unrolled:
            raise ValueError(f"splits={self.splits}: needs is_unrolled")
        if self.is_ahead and 2 * self.block_n > POSITION_PAD:
            raise ValueError(f"is_ahead: block_n={self.block_n} must be at most {POSITION_PAD // 2}")


@dataclass(frozen=True)
class EmbedTile:
    """Rows of a program, and programs that share the columns of a row's projection."""

    block_m: int
    groups: int = 1


@dataclass(frozen=True)
class Wide:
    """A block in three kernels.

    The output's columns lie in one program if its block_n is all of D, which then computes the next norm.
    Otherwise every program of the projection computes it.
    """

    project: Tile
    attention: AttentionTile
    output: Tile


@dataclass(frozen=True)
class Schedule:
    """Tiles of a forward: of a block in one kernel, or in three."""

    embed: EmbedTile
    block: AttentionTile | Wide
