"""The DLRM of the "Fused Kernels" lecture, a simpler relative of `reference.dlrm`.

The model has one dense MLP and one embedding for each sparse feature (one index, no bags). The interaction is
the flattened outer product of all features with themselves. A prediction MLP under a sigmoid follows.
State-dict keys equal the lecture's ``model.py`` (github.com/kapilsh/cuda-mode-lecture): its checkpoints load
strictly.

Departures from the lecture:

* tokenizers and cardinalities are buffers and follow the model to its device; the state dict, like the
  lecture's, is without them;
* the hash is an argument; the lecture edits its code and leaves ``Parameters.use_modulus_hash`` unread;
* a batch of one row gives one probability, where the lecture's ``squeeze()`` gives a scalar.

The lecture feeds counts without a logarithm. Products of the dense outputs then exceed 65,504, float16's
largest number: float16 needs scaled inputs here.

Legend: B batch, D dense features, T sparse features, O outputs of the dense MLP, C concatenated features,
K tokens of a feature.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch
from torch import nn

from reference.validation import require, require_positive


class SparseFeatureMetadata(TypedDict):
    """The metadata file's entry for one sparse feature.

    Attributes:
        cardinality: rows of the feature's embedding.
        tokenizer_values: the raw values; a value's position is its row.
    """

    cardinality: int
    tokenizer_values: list[int]


Metadata = Mapping[str, SparseFeatureMetadata]


def read_metadata(metadata_path: str | Path) -> dict[str, SparseFeatureMetadata]:
    """Read a metadata file: JSON, one entry for each feature, ``SPARSE_0`` first.

    Raises:
        ValueError: naming the file, and the feature whose entry is missing or incomplete.
    """
    try:
        metadata = json.loads(Path(metadata_path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"metadata_path={str(metadata_path)!r}: is not JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise ValueError(f"metadata_path={str(metadata_path)!r}: must hold one entry for each feature")
    check_metadata(metadata)
    return metadata


def check_metadata(metadata: Metadata) -> None:
    """Raise ``ValueError`` unless ``SPARSE_0``, ``SPARSE_1``... each have a complete entry, in this order."""
    names = [f"SPARSE_{feature}" for feature in range(len(metadata))]
    require(len(names) > 0, "metadata", dict(metadata), "give at least one sparse feature")
    require(
        list(metadata) == names, "metadata", list(metadata), f"must be {names[0]} to {names[-1]}, in order"
    )
    for name, entry in metadata.items():
        for key in ("cardinality", "tokenizer_values"):
            present = isinstance(entry, Mapping) and key in entry
            require(present, f"metadata[{name!r}]", entry, f"needs {key!r}")
        require_positive(**{f"metadata[{name!r}]['cardinality']": entry["cardinality"]})


class MLP(nn.Module):
    """Linear layers with ReLUs between them and none at the end. Keys: ``fc_layers.N.weight``, ``.bias``."""

    def __init__(self, input_size: int, hidden_sizes: Sequence[int], output_size: int) -> None:
        super().__init__()
        sizes = (input_size, *hidden_sizes, output_size)
        require_positive(**{f"layer size {number}": size for number, size in enumerate(sizes)})
        layers: list[nn.Module] = [nn.Linear(sizes[0], sizes[1])]
        for fan_in, fan_out in zip(sizes[1:-1], sizes[2:], strict=True):
            layers += [nn.ReLU(), nn.Linear(fan_in, fan_out)]
        self.fc_layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, input_size) -> (B, output_size)."""
        return self.fc_layers(x)


class DenseArch(nn.Module):
    """The MLP over dense features. They enter as they are: the lecture takes no logarithm."""

    def __init__(
        self, dense_feature_count: int, dense_hidden_layers_sizes: Sequence[int], output_size: int
    ) -> None:
        super().__init__()
        self.mlp = MLP(dense_feature_count, dense_hidden_layers_sizes, output_size)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(B, D) -> (B, O)."""
        return self.mlp(inputs)


class SparseFeatureLayer(nn.Module):
    """One feature's table. Key: ``embedding.weight`` (cardinality, embedding_size)."""

    def __init__(self, cardinality: int, embedding_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(cardinality, embedding_size)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Row numbers (B,) -> (B, embedding_size)."""
        return self.embedding(inputs)


class SparseArch(nn.Module):
    """Hash raw sparse values to rows, and look the rows up.

    Args:
        metadata: see `read_metadata`.
        embedding_sizes: columns of each feature's table.
        use_modulus_hash: `modulus_hash`, the lecture's last hash; else `index_hash`, its first.
    """

    def __init__(
        self, metadata: Metadata, embedding_sizes: Mapping[str, int], use_modulus_hash: bool = True
    ) -> None:
        super().__init__()
        check_metadata(metadata)
        named = sorted(embedding_sizes)
        require(named == sorted(metadata), "embedding_sizes", named, "must name each feature of the metadata")
        self.num_sparse_features = len(metadata)
        self.use_modulus_hash = use_modulus_hash
        self.sparse_layers = nn.ModuleList(
            SparseFeatureLayer(entry["cardinality"], embedding_sizes[name])
            for name, entry in metadata.items()
        )
        cardinalities = torch.tensor([entry["cardinality"] for entry in metadata.values()])
        self.register_buffer("cardinality_T", cardinalities, persistent=False)
        if not use_modulus_hash:
            for feature, entry in enumerate(metadata.values()):
                values = torch.tensor(entry["tokenizer_values"], dtype=torch.int64)
                fix = f"must be 1 to {entry['cardinality']}, the feature's cardinality"
                require(
                    1 <= len(values) <= entry["cardinality"], f"SPARSE_{feature} tokens", len(values), fix
                )
                self.register_buffer(f"tokenizer_values_{feature}", values, persistent=False)

    @staticmethod
    def index_hash(tensor: torch.Tensor, tokenizer_values: torch.Tensor) -> torch.Tensor:
        """The position of each value (B,) among ``tokenizer_values`` (K,); 0 for absent values.

        Compares every value with every token, B x K; this dominates the lecture's first profile.
        """
        matches_BK = tensor.view(-1, 1) == tokenizer_values.view(1, -1)
        return torch.argmax(matches_BK.to(torch.int64), dim=1)

    @staticmethod
    def modulus_hash(tensor: torch.Tensor, cardinality: torch.Tensor | int) -> torch.Tensor:
        """(x + 1) mod cardinality, elementwise: never negative for a positive cardinality."""
        return (tensor + 1) % cardinality

    def hash_indices(self, inputs: torch.Tensor) -> torch.Tensor:
        """Raw values (B, T) int64 -> row numbers (B, T) int64."""
        if self.use_modulus_hash:
            return self.modulus_hash(inputs, self.cardinality_T)
        columns = [
            self.index_hash(inputs[:, feature], getattr(self, f"tokenizer_values_{feature}"))
            for feature in range(self.num_sparse_features)
        ]
        return torch.stack(columns, dim=1)

    def forward(self, inputs: torch.Tensor) -> list[torch.Tensor]:
        """Raw values (B, T) int64 -> each feature's embedding, T tensors of (B, its embedding size)."""
        rows_BT = self.hash_indices(inputs)
        return [layer(rows_BT[:, feature]) for feature, layer in enumerate(self.sparse_layers)]


class DenseSparseInteractionLayer(nn.Module):
    """All products of two numbers among the concatenated features. No parameters."""

    def forward(self, dense_out: torch.Tensor, sparse_out: Sequence[torch.Tensor]) -> torch.Tensor:
        """(B, O) and T tensors of (B, size) -> (B, C * C), row by row; C is O plus the sizes."""
        concat_BC = torch.cat((dense_out, *sparse_out), dim=-1)
        return torch.flatten(concat_BC.unsqueeze(2) * concat_BC.unsqueeze(1), 1)


class PredictionLayer(nn.Module):
    """The MLP over interactions, and a sigmoid."""

    def __init__(
        self, dense_out_size: int, sparse_out_sizes: Sequence[int], hidden_sizes: Sequence[int]
    ) -> None:
        super().__init__()
        concat_size = dense_out_size + sum(sparse_out_sizes)
        self.mlp = MLP(concat_size * concat_size, hidden_sizes, 1)
        self.sigmoid = nn.Sigmoid()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(B, C * C) -> click probabilities (B, 1)."""
        return self.sigmoid(self.mlp(inputs))


@dataclass(frozen=True)
class Parameters:
    """Sizes of the lecture's model, with the names of its hyperparameter files.

    Attributes:
        dense_input_feature_size: dense features D.
        sparse_embedding_sizes: columns of each sparse feature's table.
        dense_mlp: ``hidden_layer_sizes``, a list, and ``output_size``.
        prediction_hidden_sizes: hidden widths of the prediction MLP.
        use_modulus_hash: see `SparseArch`.
    """

    dense_input_feature_size: int
    sparse_embedding_sizes: Mapping[str, int]
    dense_mlp: Mapping[str, Sequence[int] | int]
    prediction_hidden_sizes: Sequence[int]
    use_modulus_hash: bool = True


class DLRM(nn.Module):
    """The lecture's whole model: dense and sparse parts, interaction, prediction."""

    def __init__(self, metadata: Metadata, parameters: Parameters) -> None:
        super().__init__()
        output_size = parameters.dense_mlp["output_size"]
        self.dense_layer = DenseArch(
            parameters.dense_input_feature_size, parameters.dense_mlp["hidden_layer_sizes"], output_size
        )
        self.sparse_layer = SparseArch(
            metadata, parameters.sparse_embedding_sizes, parameters.use_modulus_hash
        )
        self.interaction_layer = DenseSparseInteractionLayer()
        self.prediction_layer = PredictionLayer(
            output_size,
            [parameters.sparse_embedding_sizes[name] for name in metadata],
            parameters.prediction_hidden_sizes,
        )

    def forward(self, dense_features: torch.Tensor, sparse_features: torch.Tensor) -> torch.Tensor:
        """(B, D) and raw values (B, T) int64 -> click probabilities (B,)."""
        dense_out = self.dense_layer(dense_features)
        sparse_out = self.sparse_layer(sparse_features)
        return self.prediction_layer(self.interaction_layer(dense_out, sparse_out)).squeeze(1)
