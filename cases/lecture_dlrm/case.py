"""The lecture's DLRM: `reference.lecture_dlrm` against `tripy_port.lecture_dlrm`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cases.configured import ConfiguredCase
from parity.base.errors import UserError
from parity.case import Arrays, Batches
from parity.inputs.arrays import CaseInputs, require_all_good, require_int64, require_names

_LARGEST_COUNT = 4_000
"""Counts enter without a logarithm: the lecture's own two rows go up to 3157."""
_COUNTS_RMS = 1000.0
"""Root mean square of the counts. The model takes no logarithm of them."""
_LARGEST_RAW = 2**32
"""Criteo's sparse values are 32-bit hashes."""


class LectureDLRMCase(ConfiguredCase):
    """Counts and raw sparse values in, click probabilities out."""

    builder = "build_lecture_dlrm"
    outputs = ("click",)

    def make_inputs(self) -> Batches:
        """Counts and raw values. A quarter of the raw values are no tokens, which tests the index hash."""
        model, batch = self.model, self.batch_size
        streams = np.random.default_rng([self.seed, 0x1EC]).spawn(3)
        shape = (batch, model.dense_input_feature_size)
        counts_BD = np.floor(np.exp(streams[0].random(shape) * np.log(_LARGEST_COUNT)))
        sparse_BT = streams[1].integers(0, _LARGEST_RAW, (batch, len(model.cardinalities)))
        if model.token_hash == "index":
            tokens = [entry["tokenizer_values"] for entry in model.metadata.values()]
            known_BT = np.stack([streams[2].choice(values, batch) for values in tokens], axis=1)
            sparse_BT = np.where(streams[2].random(sparse_BT.shape) < 0.75, known_BT, sparse_BT)
        inputs = CaseInputs(
            {"dense_features": counts_BD.astype(np.float32), "sparse_features": sparse_BT.astype(np.int64)}
        )
        return Batches([inputs], f"synthetic, seed {self.seed}", {"rows": batch})

    def read(self, path: Path) -> Any:
        raise UserError(
            "--data",
            str(path),
            "cannot be read for the lecture's DLRM",
            "leave --data out, or use dlrm_kaggle",
        )

    def validate(self, arrays: Arrays) -> None:
        inputs = CaseInputs(arrays)
        require_names(inputs, ("dense_features", "sparse_features"))
        dense_BD, sparse_BT = inputs["dense_features"], inputs["sparse_features"]
        require_int64("sparse_features", sparse_BT)
        batch = dense_BD.shape[0] if dense_BD.ndim else 0
        for name, array, width in (
            ("dense_features", dense_BD, self.model.dense_input_feature_size),
            ("sparse_features", sparse_BT, len(self.model.cardinalities)),
        ):
            if array.shape != (batch, width) or batch == 0:
                fix = "give both arrays the same rows, at least one"
                raise UserError(name, array.shape, f"is not the shape ({batch}, {width})", fix)
        if dense_BD.dtype != np.float32:
            raise UserError("dense_features", str(dense_BD.dtype), "is not float32", "give float32")
        require_all_good(
            "dense_features", dense_BD, ~np.isfinite(dense_BD), "is not finite", "fill the gaps of the data"
        )

    def weight_scale(self, name: str, parameter: torch.Tensor) -> float | None:
        """Tables 1, layers sqrt(1 / inputs), and the first one less by the size of the counts."""
        if name.startswith("sparse_layer."):
            return 1.0
        if name == "dense_layer.mlp.fc_layers.0.weight":
            return 1.0 / math.sqrt(parameter.shape[1]) / _COUNTS_RMS
        return None

    def batch_size_of(self, arrays: Arrays) -> int:
        return arrays["dense_features"].shape[0]
