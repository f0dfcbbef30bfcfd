"""The lecture's DLRM: `reference.lecture_dlrm` against `tripy_port.lecture_dlrm`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from configs import CaseConfig, LectureDLRMConfig
from parity.base.errors import UserError
from parity.capture.captures import ModuleCall
from parity.case import Arrays, Batches, Family
from parity.inputs.arrays import CaseInputs, require_all_good, require_int64, require_names

_LARGEST_COUNT = 4_000
"""Counts enter without a logarithm: the lecture's own two rows go up to 3157."""
_LARGEST_RAW = 2**32
"""Criteo's sparse values are 32-bit hashes."""


class LectureDLRMFamily(Family):
    """Counts and raw sparse values in, click probabilities out."""

    name = "lecture_dlrm"
    builder = "build_lecture_dlrm"
    entry = "forward"
    outputs = ("click",)

    def build_reference(self, config: LectureDLRMConfig, layout: str) -> torch.nn.Module:
        from reference.build import build_lecture_dlrm

        return build_lecture_dlrm(config)

    def gaps(self) -> Mapping[str, str]:
        from tripy_port.gaps import GAPS

        return GAPS

    def synthetic(self, case: CaseConfig) -> Batches:
        """Counts, and raw values of which, for the index hash, a quarter are no tokens."""
        model, batch = case.model, case.input.batch_size
        streams = np.random.default_rng([case.input.seed, 0x1EC]).spawn(3)
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
        return Batches([inputs], f"synthetic, seed {case.input.seed}", {"rows": batch})

    def recognises(self, path: Path) -> bool:
        return False

    def read(self, path: Path) -> Any:
        raise UserError(
            "--data",
            str(path),
            "cannot be read for the lecture's DLRM",
            "leave --data out, or use dlrm_kaggle",
        )

    def recorded(self, case: CaseConfig, data: Any) -> Batches:
        raise NotImplementedError("`read` has refused")

    def validate(self, inputs: CaseInputs, case: CaseConfig) -> None:
        require_names(inputs, ("dense_features", "sparse_features"))
        dense_BD, sparse_BT = inputs["dense_features"], inputs["sparse_features"]
        require_int64("sparse_features", sparse_BT)
        batch = dense_BD.shape[0] if dense_BD.ndim else 0
        for name, array, width in (
            ("dense_features", dense_BD, case.model.dense_input_feature_size),
            ("sparse_features", sparse_BT, len(case.model.cardinalities)),
        ):
            if array.shape != (batch, width) or batch == 0:
                fix = "give both arrays the same rows, at least one"
                raise UserError(name, array.shape, f"is not the shape ({batch}, {width})", fix)
        if dense_BD.dtype != np.float32:
            raise UserError("dense_features", str(dense_BD.dtype), "is not float32", "give float32")
        require_all_good(
            "dense_features", dense_BD, ~np.isfinite(dense_BD), "is not finite", "fill the gaps of the data"
        )

    def poison(self, inputs: CaseInputs, seed: int) -> None:
        """Rows are dense: there is no padding."""
        return None

    def entry_arguments(self, arrays: Arrays) -> dict[str, Any]:
        return dict(arrays)

    def batch_size(self, arrays: Arrays) -> int:
        return arrays["dense_features"].shape[0]

    def valid_rows(self, arrays: Arrays) -> dict[int, np.ndarray]:
        return {}

    def boundary(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], config: LectureDLRMConfig
    ) -> None:
        """Hashes are taken of integers, exactly."""
        return None


LECTURE_DLRM_FAMILY = LectureDLRMFamily()
