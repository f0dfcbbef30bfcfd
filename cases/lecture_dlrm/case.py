"""The lecture's DLRM: `reference.lecture_dlrm` against `tripy_port.lecture_dlrm`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cases.configured import ConfiguredCase
from parity.base.errors import UserError
from parity.case import Arrays, Batches, PlannedBatch
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

    def plan(self) -> Iterator[PlannedBatch]:
        """Batches of one, two and three rows with the values at which a hash or an integer type changes."""
        sizes = self.model.cardinalities
        yield PlannedBatch("one row", "one row; counts of zero; raw value 0", self._rows(0.0, [[0]]))
        # x + 1 is the first and the last multiple of a cardinality, and beside it.
        around = [[-1] * len(sizes), [size - 1 for size in sizes]]
        yield PlannedBatch(
            "multiples",
            "two rows; raw values in front of a multiple of the cardinality",
            self._rows(-7.0, around),
        )
        beside = [list(sizes), [-2] * len(sizes), [1 - size for size in sizes]]
        yield PlannedBatch(
            "negative",
            "three rows; negative raw values, and those beside a multiple",
            self._rows(2.5, beside),
        )
        large = [[2**31 - 1], [2**31], [2**32 - 1], [2**32], [2**40 + 5], [-(2**31)], [-(2**40)]]
        yield PlannedBatch(
            "wide", "raw values at the ends of 31, 32 and more bits", self._rows(4000.0, large)
        )
        tokens = [entry["tokenizer_values"] for entry in self.model.metadata.values()]
        known = [
            [values[0] for values in tokens],
            [values[-1] for values in tokens],
            [max(values) for values in tokens],
            [max(values) + 1 for values in tokens],
            # Another value with the same low 32 bits, and one token of another feature.
            [max(values) + 2**32 for values in tokens],
            [values[len(values) // 2] for values in tokens[1:] + tokens[:1]],
        ]
        yield PlannedBatch(
            "tokens",
            "first, last and repeated tokens, and values beside them that are none",
            self._rows(30.0, known),
        )

    def _rows(self, count: float, raw: list[list[int]]) -> CaseInputs:
        """Rows of raw values, one for all features or one each; counts around one number."""
        sparse_BT = np.stack(
            [np.resize(np.array(values, dtype=np.int64), len(self.model.cardinalities)) for values in raw]
        )
        steps_BD = np.arange(len(raw) * self.model.dense_input_feature_size).reshape(len(raw), -1) % 5
        dense_BD = (count * (1 + steps_BD / 4)).astype(np.float32)
        return CaseInputs({"dense_features": dense_BD, "sparse_features": sparse_BT})

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
        """Tables 1, layers sqrt(1 / inputs); the first less by the size of counts, the last `logit_scale`."""
        if name.startswith("sparse_layer."):
            return 1.0
        if name == "dense_layer.mlp.fc_layers.0.weight":
            return 1.0 / math.sqrt(parameter.shape[1]) / _COUNTS_RMS
        if name.startswith("prediction_layer.") and parameter.shape[:-1] == (1,):
            return self.input.logit_scale / math.sqrt(parameter.shape[1])
        return None

    def batch_size_of(self, arrays: Arrays) -> int:
        return arrays["dense_features"].shape[0]
