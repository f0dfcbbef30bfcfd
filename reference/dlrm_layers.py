"""The MLPs of DLRM and the interaction of its features. See `reference.dlrm`.

Legend: B batch, C dense features, D embedding, F interacting vectors, P interacting pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from reference.embedding_bags import NumpyRandom
from reference.quantisers import NO_SCHEMES, QuantisedLinear
from reference.validation import require_choice

if TYPE_CHECKING:
    from configs import Scheme

INTERACTION_OPS = ("dot", "cat", "sum")
MLP_INITS = ("normal", "uniform")


def interaction_width(op: str, num_vectors: int, dim: int, itself: bool = False) -> int:
    """Columns that `FeatureInteraction` gives for ``num_vectors`` vectors: the first entry of ``ln_top``."""
    require_choice("arch_interaction_op", op, INTERACTION_OPS)
    if op == "dot":
        return dim + num_vectors * (num_vectors + (1 if itself else -1)) // 2
    return num_vectors * dim if op == "cat" else dim


class LogCounts(nn.Module):
    """Counts as dense features: log(max(x, 0) + 1), as the public preprocessing has it. No parameters."""

    def forward(self, counts_BC: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Integers (B, C) -> (B, C) in ``like``'s dtype, computed at least in float32.

        Counts come as integers, since the larger ones of Criteo exceed float16.
        """
        wide = torch.promote_types(like.dtype, torch.float32)
        return torch.log((counts_BC.clamp(min=0) + 1).to(wide)).to(like.dtype)


class FeatureInteraction(nn.Module):
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
        if op == "dot":
            row_P, column_P = np.tril_indices(num_vectors, k=0 if itself else -1)
            # On the CPU by name: a model made on the meta device must still have its pairs. Not persistent:
            # public checkpoints have no such key.
            pairs_P = torch.tensor(row_P * num_vectors + column_P, dtype=torch.int64, device="cpu")
            self.register_buffer("pairs", pairs_P, persistent=False)

    def forward(self, features_BFD: torch.Tensor) -> torch.Tensor:
        """Return (B, `interaction_width`)."""
        if self.op == "cat":
            return features_BFD.flatten(1)
        if self.op == "sum":
            return features_BFD.sum(dim=1)
        products_BFF = torch.bmm(features_BFD, features_BFD.transpose(1, 2))
        products_BP = products_BFF.flatten(1).index_select(1, self.pairs)
        return torch.cat((features_BFD[:, 0], products_BP), dim=1)

    def extra_repr(self) -> str:
        return f"{self.op}, itself={self.itself}" if self.op == "dot" else self.op


def create_mlp(
    sizes: Sequence[int],
    sigmoid_layer: int,
    init: str,
    rng: NumpyRandom,
    schemes: Mapping[str, Scheme] = NO_SCHEMES,
) -> nn.Sequential:
    """Linear layers of the given widths, each followed by a ReLU, or by a sigmoid at ``sigmoid_layer``.

    Args:
        sizes: input width, then each layer's output width.
        sigmoid_layer: index of the linear layer that a sigmoid follows; -1 for none.
        init: "normal" draws weights from N(0, 2 / (in + out)) and biases from N(0, 1 / out), as the public
            code does. "uniform" draws both from U[0, 1), as in the public README's run.
        rng: draws each layer's weight, then its bias.
        schemes: of the quantised linear layers, by the key of the layer.
    """
    layers: list[nn.Module] = []
    for layer, (fan_in, fan_out) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        scheme = schemes.get(str(len(layers)))
        linear = QuantisedLinear(fan_in, fan_out, scheme) if scheme else nn.Linear(fan_in, fan_out)
        if not linear.weight.is_meta:
            if init == "normal":
                weight = rng.normal(0.0, np.sqrt(2 / (fan_in + fan_out)), (fan_out, fan_in))
                bias = rng.normal(0.0, np.sqrt(1 / fan_out), fan_out)
            else:
                weight = rng.uniform(0.0, 1.0, (fan_out, fan_in))
                bias = rng.uniform(0.0, 1.0, (fan_out,))
            with torch.no_grad():
                linear.weight.copy_(torch.from_numpy(weight))
                linear.bias.copy_(torch.from_numpy(bias))
        layers += [linear, nn.Sigmoid() if layer == sigmoid_layer else nn.ReLU()]
    return nn.Sequential(*layers)
