"""A block of GPT-2, with a bug that ports really have: GELU by erf, where the weights were trained with tanh.

    PYTHONPATH=. python examples/gpt2_block.py

The output names the module and the cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import nvtripy as tp
import torch
import torch.nn.functional as F

import parity

WIDTH, HEADS, LENGTH = 24, 3, 10


class Attention(torch.nn.Module):
    """Causal attention with one projection to queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, L, D) from (B, L, D)."""
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.c_attn(x).split(WIDTH, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(-2))


class Mlp(torch.nn.Module):
    """Two layers with GELU in its form by tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.c_fc = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.c_proj = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, L, D) from (B, L, D)."""
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(torch.nn.Module):
    """The reference."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = torch.nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.ln_2 = torch.nn.LayerNorm(WIDTH)
        self.mlp = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, L, D) from (B, L, D)."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


def gelu_by_erf(x: tp.Tensor) -> tp.Tensor:
    """Tripy's own GELU: the bug."""
    return tp.gelu(x)


def gelu_by_tanh(x: tp.Tensor) -> tp.Tensor:
    """The form that the reference has."""
    return 0.5 * x * (1.0 + tp.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


class AttentionPort(tp.Module):
    """`Attention` in Tripy."""

    def __init__(self, dtype: tp.dtype) -> None:
        super().__init__()
        self.c_attn = tp.Linear(WIDTH, 3 * WIDTH, dtype=dtype)
        self.c_proj = tp.Linear(WIDTH, WIDTH, dtype=dtype)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        """(B, L, D) from (B, L, D)."""
        q, k, v = (
            tp.transpose(tp.reshape(part, (-1, LENGTH, HEADS, WIDTH // HEADS)), 1, 2)
            for part in tp.split(self.c_attn(x), 3, dim=-1)
        )
        scores = q / math.sqrt(WIDTH // HEADS) @ tp.transpose(k, 2, 3)
        is_past = tp.tril(tp.ones((LENGTH, LENGTH), dtype=tp.float32)) > 0.0
        scores = tp.where(is_past, scores, tp.full_like(scores, -math.inf))
        mixed = tp.softmax(scores, dim=-1) @ v
        return self.c_proj(tp.reshape(tp.transpose(mixed, 1, 2), (-1, LENGTH, WIDTH)))


class MlpPort(tp.Module):
    """`Mlp` in Tripy, with either form of GELU."""

    def __init__(self, dtype: tp.dtype, gelu: Callable[[tp.Tensor], tp.Tensor]) -> None:
        super().__init__()
        self.c_fc = tp.Linear(WIDTH, 4 * WIDTH, dtype=dtype)
        self.c_proj = tp.Linear(4 * WIDTH, WIDTH, dtype=dtype)
        self._gelu = gelu

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        """(B, L, D) from (B, L, D)."""
        return self.c_proj(self._gelu(self.c_fc(x)))


class BlockPort(tp.Module):
    """The port with the bug."""

    gelu = staticmethod(gelu_by_erf)

    def __init__(self, dtype: tp.dtype) -> None:
        super().__init__()
        self.ln_1 = tp.LayerNorm(WIDTH, dtype=dtype)
        self.attn = AttentionPort(dtype)
        self.ln_2 = tp.LayerNorm(WIDTH, dtype=dtype)
        self.mlp = MlpPort(dtype, self.gelu)

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        """(B, L, D) from (B, L, D)."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class MendedPort(BlockPort):
    """The port without it."""

    gelu = staticmethod(gelu_by_tanh)


def main(port: type[BlockPort]) -> parity.Result:
    """Compare the block with a port in fp32 and fp16."""
    inputs = {"x": torch.randn(8, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))}
    return parity.compare(Block(), port, inputs=inputs)


if __name__ == "__main__":
    for port in (BlockPort, MendedPort):
        print(f"{port.__name__}: {main(port)}")
