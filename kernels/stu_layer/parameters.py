"""Sizes and parameters of a production STU layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

NORM_EPS = 1e-6


@dataclass(frozen=True)
class Sizes:
    """Heads of a layer and the norm of their output.

    Attributes:
        num_heads, attention_dim, hidden_dim: H, K, V.
        use_group_norm: a norm of each head with a weight and a bias, in place of a layer norm of all heads.
    """

    num_heads: int
    attention_dim: int
    hidden_dim: int
    use_group_norm: bool = False

    @property
    def gates(self) -> int:
        """Elements of u and of the attention's output in a row."""
        return self.num_heads * self.hidden_dim

    @property
    def norm_groups(self) -> int:
        """Heads with a norm of their own; 0 for one norm of all heads."""
        return self.num_heads if self.use_group_norm else 0

    @property
    def factors(self) -> int:
        """Elements of q, or of k, in a row."""
        return self.num_heads * self.attention_dim

    @property
    def projected(self) -> int:
        """Elements of u, v, q and k in a row."""
        return 2 * (self.gates + self.factors)


class Parameters(NamedTuple):
    """A layer's parameters, all in one type; the public names without the underscore.

    All are contiguous. Shapes: `shapes_of`.
    """

    uvqk_weight: torch.Tensor
    uvqk_beta: torch.Tensor
    input_norm_weight: torch.Tensor
    input_norm_bias: torch.Tensor
    output_weight: torch.Tensor
    output_norm_weight: torch.Tensor
    output_norm_bias: torch.Tensor


def shapes_of(sizes: Sizes, embedding_dim: int) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter; group norm has one weight and one bias a head."""
    normed = (sizes.num_heads if sizes.use_group_norm else sizes.gates,)
    return {
        "uvqk_weight": (embedding_dim, sizes.projected),
        "uvqk_beta": (sizes.projected,),
        "input_norm_weight": (embedding_dim,),
        "input_norm_bias": (embedding_dim,),
        "output_weight": (3 * sizes.gates, embedding_dim),
        "output_norm_weight": normed,
        "output_norm_bias": normed,
    }


def split_projection(
    uvqk: torch.Tensor, sizes: Sizes
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(L, 2 H (V + K)) -> views u (L, H V), v (L, H, V), q and k (L, H, K)."""
    u, v, q, k = uvqk.split([sizes.gates, sizes.gates, sizes.factors, sizes.factors], dim=1)
    heads = sizes.num_heads
    return u, v.unflatten(1, (heads, -1)), q.unflatten(1, (heads, -1)), k.unflatten(1, (heads, -1))


def split_cached(cached: torch.Tensor, sizes: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, capacity, H (V + K)) -> views of values (B, capacity, H, V) and keys (B, capacity, H, K)."""
    values, keys = cached.split([sizes.gates, sizes.factors], dim=2)
    return values.unflatten(2, (sizes.num_heads, -1)), keys.unflatten(2, (sizes.num_heads, -1))
