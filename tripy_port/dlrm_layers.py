"""The MLPs of DLRM and the interaction of its features. Counterpart of reference/dlrm_layers.py.

Tripy's activations are functions. The classes below make modules of them: state-dict keys count activations
as layers (``bot_l.0``, ``bot_l.2``...).

Legend: B batch, C dense features, D embedding, F interacting vectors, P interacting pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import nvtripy as tp

from tripy_port.quantisers import NO_SCHEMES, QuantisedLinear
from tripy_port.validation import require_choice

if TYPE_CHECKING:
    from configs import Scheme

INTERACTION_OPS = ("dot", "cat", "sum")


class ReLU(tp.Module):
    """max(x, 0). No parameters."""

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        """Any shape."""
        return tp.relu(x)


class Sigmoid(tp.Module):
    """1 / (1 + exp(-x)). No parameters."""

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        """Any shape."""
        return tp.sigmoid(x)


class Identity(tp.Module):
    """x. No parameters."""

    def forward(self, x: tp.Tensor) -> tp.Tensor:
        """Any shape."""
        return x


def interaction_width(op: str, num_vectors: int, dim: int, itself: bool = False) -> int:
    """Columns that `FeatureInteraction` gives for ``num_vectors`` vectors: the first entry of ``ln_top``."""
    require_choice("arch_interaction_op", op, INTERACTION_OPS)
    if op == "dot":
        return dim + num_vectors * (num_vectors + (1 if itself else -1)) // 2
    return num_vectors * dim if op == "cat" else dim


class LogCounts(tp.Module):
    """Counts as dense features: log(max(x, 0) + 1). No parameters."""

    def forward(self, counts_BC: tp.Tensor, like: tp.Tensor) -> tp.Tensor:
        """Integers (B, C) -> (B, C) in ``like``'s dtype, computed in float32."""
        return tp.cast(tp.log(tp.cast(tp.maximum(counts_BC, 0) + 1, tp.float32)), like.dtype)


class FeatureInteraction(tp.Module):
    """Combine the bottom MLP's output (row 0) with the tables' outputs. No parameters.

    Args:
        op: "dot" gives row 0, then the dot products of all pairs of different rows. Pairs follow the lower
            triangle row by row: (1,0), (2,0), (2,1), (3,0) and so on. "cat" concatenates the rows; "sum" adds
            them.
        num_vectors: rows F that interact.
        itself: whether "dot" includes a row's product with itself, behind its products with earlier rows.
    """

    def __init__(self, op: str, num_vectors: int, itself: bool = False) -> None:
        super().__init__()
        require_choice("arch_interaction_op", op, INTERACTION_OPS)
        self.op = op
        self.itself = itself
        self.num_vectors = num_vectors

    def forward(self, features_BFD: tp.Tensor) -> tp.Tensor:
        """Return (B, `interaction_width`)."""
        if self.op == "cat":
            return tp.flatten(features_BFD, start_dim=1)
        if self.op == "sum":
            # PyTorch accumulates half tensors in float32 and rounds once.
            return tp.cast(tp.sum(tp.cast(features_BFD, tp.float32), dim=1), features_BFD.dtype)
        products_BFF = features_BFD @ tp.transpose(features_BFD, 1, 2)
        # Numbers of the pairs in a flattened (F, F), made here: a tensor on the module would be a parameter.
        pairs = [
            row * self.num_vectors + column
            for row in range(self.num_vectors)
            for column in range(row + 1 if self.itself else row)
        ]
        dense_BD = tp.squeeze(features_BFD[:, 0:1], 1)
        if not pairs:
            return dense_BD
        products_BP = tp.gather(tp.flatten(products_BFF, start_dim=1), 1, tp.Tensor(pairs))
        return tp.concatenate([dense_BD, products_BP], dim=1)


def create_mlp(
    sizes: Sequence[int],
    sigmoid_layer: int,
    schemes: Mapping[str, Scheme] = NO_SCHEMES,
    dtype: tp.dtype = tp.float32,
) -> tp.Sequential:
    """Linear layers of the given widths, each followed by a ReLU, or by a sigmoid at ``sigmoid_layer``.

    Args:
        sizes: input width, then each layer's output width.
        sigmoid_layer: index of the linear layer that a sigmoid follows; -1 for none.
        schemes: of the quantised linear layers, by the key of the layer.
    """
    layers: list[tp.Module] = []
    for layer, (fan_in, fan_out) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        scheme = schemes.get(str(len(layers)))
        linear = (
            QuantisedLinear(fan_in, fan_out, scheme, dtype)
            if scheme
            else tp.Linear(fan_in, fan_out, dtype=dtype)
        )
        layers += [
            linear,
            Sigmoid() if layer == sigmoid_layer else ReLU(),
        ]
    return tp.Sequential(*layers)
