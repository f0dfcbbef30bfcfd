"""Parameters, sizes and products of one research HSTU, as the launches read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.hstu_forward.weights import BlockWeights, Shape


@dataclass(frozen=True)
class Products:
    """How a product of float32 is made, in the projections and in the attention: as one, by float32
    multiply-add, or on tensor cores, of factors of one or two float16 parts (`triton_kernel_products`). One
    part has the 11 bits of a tf32 and no factor beyond 65,504; two have 22, and none beyond 2,047.
    """

    projections: int
    attention: int
    on_tensor_cores: bool


# Half types have one way, "ieee": theirs.
DOT_PRECISIONS = {
    "ieee": Products(1, 1, on_tensor_cores=False),
    "fp16x3": Products(2, 2, on_tensor_cores=True),
    "fp16x3, attention fp16": Products(2, 1, on_tensor_cores=True),
    "fp16": Products(1, 1, on_tensor_cores=True),
}


@dataclass(frozen=True)
class Settings:
    """What a state dict does not say about its model.

    Attributes:
        num_heads, attention_dim, linear_dim: H, K, V.
        divisor: of the attention weights: W, the width of the model's mask.
        bucket_divisor, epsilon, l2_epsilon: of the time buckets, the layer norms and the final L2 norm.
    """

    num_heads: int
    attention_dim: int
    linear_dim: int
    divisor: int
    bucket_divisor: float = 0.301
    epsilon: float = 1e-6
    l2_epsilon: float = 1e-6


@dataclass(frozen=True)
class Parameters:
    """A model's parameters on one device.

    Attributes:
        shape: sizes.
        settings: sizes and constants that no parameter carries.
        products: form of the products of float32.
        item_weights: (items + 1, D).
        position_weights: (W, D).
        blocks: parameters of each block.
    """

    shape: Shape
    settings: Settings
    products: Products
    item_weights: torch.Tensor
    position_weights: torch.Tensor
    blocks: tuple[BlockWeights, ...]
