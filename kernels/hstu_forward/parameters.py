"""Parameters, sizes and products of one research HSTU: the input of the launches."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.hstu_forward.weights import BlockWeights, Shape


@dataclass(frozen=True)
class Products:
    """Form of the products of float32.

    Without tensor cores a product is one float32 multiply-add. On tensor cores its factors have one or two
    float16 parts (`triton_kernel_products`). One part has the 11 bits of a tf32 and a range up to 65,504. Two
    parts have 22 bits and a range up to 2,047.

    Attributes:
        projections: parts of the factors in the projections.
        attention: parts of the factors in the attention.
        on_tensor_cores: whether tensor cores multiply.
    """

    projections: int
    attention: int
    on_tensor_cores: bool


# Half types have "ieee" only.
DOT_PRECISIONS = {
    "ieee": Products(1, 1, on_tensor_cores=False),
    "fp16x3": Products(2, 2, on_tensor_cores=True),
    "fp16x3, attention fp16": Products(2, 1, on_tensor_cores=True),
    "fp16": Products(1, 1, on_tensor_cores=True),
}


@dataclass(frozen=True)
class Settings:
    """Sizes and constants that a state dict does not hold.

    Attributes:
        num_heads, attention_dim, linear_dim: H, K, V.
        divisor: divisor of the attention weights: W, the width of the model's mask.
        bucket_divisor: width of a time bucket in ln(seconds).
        epsilon, l2_epsilon: epsilon of the layer norms and of the final L2 norm.
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
        products: form of the products.
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
