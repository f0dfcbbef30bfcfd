"""The production STU: `reference.hstu_transducer`, dense and jagged, against `tripy_port.hstu_transducer`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cases.stu import inputs as stu_inputs
from cases.stu import jagged as stu_jagged
from configs import CaseConfig, STUConfig
from parity.base.errors import UserError
from parity.capture.captures import ModuleCall, TensorKey
from parity.case import Arrays, Batches, Family
from parity.inputs.arrays import CaseInputs

CACHE_TENSORS = 2
"""Tensors of one layer's cache state: k, v."""


class STUFamily(Family):
    """Contextual features, histories and targets in, a state for each target out."""

    name = "stu"
    builder = "build_stu"
    layouts = ("dense", "jagged")
    entry = "forward"
    outputs = ("targets",)
    incremental_outputs = {"incremental.targets": "forward.targets"}

    def build_reference(self, config: STUConfig, layout: str) -> torch.nn.Module:
        from reference.build import build_stu

        return build_stu(config, layout)

    def gaps(self) -> Mapping[str, str]:
        from tripy_port.gaps import GAPS

        return GAPS

    def synthetic(self, case: CaseConfig) -> Batches:
        inputs = stu_inputs.synthetic(case)
        counts = {
            "users": case.input.batch_size,
            "rows": int(inputs["seq_lengths"].sum()),
            "targets": int(inputs["num_targets"].sum()),
        }
        return Batches([inputs], f"synthetic, seed {case.input.seed}", counts)

    def recognises(self, path: Path) -> bool:
        return False

    def read(self, path: Path) -> Any:
        raise UserError(
            "--data", str(path), "cannot be read for the production STU", "leave --data out, or use hstu_ml1m"
        )

    def recorded(self, case: CaseConfig, data: Any) -> Batches:
        raise NotImplementedError("`read` has refused")

    def validate(self, inputs: CaseInputs, case: CaseConfig) -> None:
        stu_inputs.validate(inputs, case.model)
        # Padding is masked by axis length, so no other axis may be as long as the sequence. That of the
        # targets needs no mask: behind a sequence's targets it repeats a valid row.
        n = case.model.padded_length
        if n in {self.batch_size(inputs.arrays), *_widths(case.model)}:
            raise UserError(
                f"{case.name}: padded length",
                n,
                "is also the size of the batch or of another axis, so that padding cannot be told apart",
                "choose another batch size, max_num_targets or max_uih_len",
            )

    def poison(self, inputs: CaseInputs, seed: int) -> CaseInputs:
        return stu_inputs.poison(inputs, seed)

    def entry_arguments(self, arrays: Arrays) -> dict[str, Any]:
        return dict(arrays)

    def batch_size(self, arrays: Arrays) -> int:
        return arrays["seq_lengths"].shape[0]

    def rows(self, arrays: Arrays, rows: slice) -> dict[str, np.ndarray]:
        """Sequences are independent: attention, norms and positions stay within one."""
        return {name: array[rows] for name, array in arrays.items()}

    def valid_rows(self, arrays: Arrays) -> dict[int, np.ndarray]:
        return {arrays["seq_ids"].shape[1]: stu_inputs.valid_mask(arrays)}

    def is_causal(self, config: STUConfig) -> bool:
        return config.mask_contextual_seq_len == 0

    def boundary(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], config: STUConfig
    ) -> np.ndarray | None:
        """The time bucket of a row is floor(sqrt(max(dt, 0) / 60)) in float32, clamped above.

        Its pre-image is within round-off of an integer when the conversion of dt, division and root, each
        good to one ulp, could land on either side: relative distance up to 4 * 2^-24. A root that is a whole
        number, which every 60 k^2 seconds have, is so where division or root are not correctly rounded.
        """
        if call.kind != "HSTUPositionalEncoder":
            return None
        lengths_B, seconds_BN = (_array(call, inputs, place) for place in (0, 1))
        query_B1 = np.take_along_axis(seconds_BN, lengths_B[:, None] - 1, axis=1)
        bucket_BN = np.sqrt(np.maximum(query_B1 - seconds_BN, 0) / 60.0)
        nearest_BN = np.rint(bucket_BN)
        close_BN = np.abs(bucket_BN - nearest_BN) <= 4 * 2.0**-24 * bucket_BN
        # Zero is exact, and past the last bucket both sides clamp to the same one.
        close_BN &= (nearest_BN >= 1) & (nearest_BN <= config.num_time_buckets)
        return np.repeat(close_BN[:, :, None], config.embedding_dim, axis=2)

    def incremental_arguments(
        self, config: STUConfig, arrays: Arrays
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return dict(arrays), dict(arrays)

    def prefill(self, model: Any, **arguments: Any) -> list:
        """Run contextual rows and history; return the cache, a list of (k, v) for the layers. Either side."""
        return model.prefill(**arguments)

    def extend(self, model: Any, cache: list, **arguments: Any) -> tuple[Any]:
        """Append all targets; return their states as in `incremental_outputs`. Either side."""
        return (model.extend(cache=cache, **arguments),)

    def unflatten_cache(self, tensors: Mapping[str, torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        """Rebuild the cache from the tensors that `prefill` returned, in order."""
        flat = list(tensors.values())
        return [tuple(flat[start : start + CACHE_TENSORS]) for start in range(0, len(flat), CACHE_TENSORS)]

    def pad_taps(self, tensors: Mapping[str, torch.Tensor], arrays: Arrays) -> dict[str, torch.Tensor]:
        return stu_jagged.pad_taps(tensors, torch.tensor(arrays["seq_lengths"]), arrays["seq_ids"].shape[1])

    def jagged_arguments(self, path: str, args: list, kwargs: dict, arrays: Arrays) -> tuple[list, dict]:
        return stu_jagged.jagged_arguments(path, args, kwargs, torch.tensor(arrays["seq_lengths"]))


def _array(call: ModuleCall, inputs: Mapping[str, torch.Tensor], place: int) -> np.ndarray:
    argument = call.args[place]
    assert isinstance(argument, TensorKey)
    return inputs[argument.key].numpy()


def _widths(config: STUConfig) -> set[int]:
    """Sizes of the axes that are never padded."""
    heads = config.num_heads
    split = (config.hidden_dim * heads, config.attention_dim * heads)
    return {
        config.embedding_dim,
        heads,
        *split,
        config.hidden_dim,
        config.attention_dim,
        2 * sum(split),
        config.max_num_targets,
    }


STU_FAMILY = STUFamily()
