"""The production STU: `reference.hstu_transducer`, dense and jagged, against `tripy_port.hstu_transducer`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cases.configured import ConfiguredCase, unflatten_cache
from cases.stu import inputs as stu_inputs
from cases.stu import plan as stu_plan
from cases.stu.bucket_edges import close_to_bucket_edges
from cases.stu.weight_scales import weight_scale
from configs import STUConfig
from parity.base.errors import UserError
from parity.case import Arrays, Batches, PlannedBatch
from parity.inputs.arrays import CaseInputs

CACHE_TENSORS = 2
"""Tensors of one layer's cache state: k, v."""


class DenseSTU(ConfiguredCase):
    """Contextual features, histories and targets in, a state for each target out."""

    builder = "build_stu"
    outputs = ("targets",)
    incremental_outputs = {"incremental.targets": "forward.targets"}

    def make_inputs(self) -> Batches:
        inputs = stu_inputs.synthetic(self.config)
        counts = {
            "users": self.batch_size,
            "rows": int(inputs["seq_lengths"].sum()),
            "targets": int(inputs["num_targets"].sum()),
        }
        return Batches([inputs], f"synthetic, seed {self.seed}", counts)

    def plan(self) -> Iterable[PlannedBatch]:
        return stu_plan.plan(self.config, _widths(self.model))

    def read(self, path: Path) -> Any:
        raise UserError(
            "--data", str(path), "cannot be read for the production STU", "leave --data out, or use hstu_ml1m"
        )

    def validate(self, arrays: Arrays) -> None:
        stu_inputs.validate(CaseInputs(arrays), self.model)
        # Padding is masked by axis length, so no other axis may be as long as the sequence. That of the
        # targets needs no mask: behind a sequence's targets it repeats a valid row.
        n = arrays["seq_ids"].shape[1]
        if n in {self.batch_size_of(arrays), *_widths(self.model)}:
            raise UserError(
                f"{self.name}: padded length",
                n,
                "is also the size of the batch or of another axis, so that padding cannot be told apart",
                "choose another batch size, max_num_targets or max_uih_len",
            )

    def poison(self, arrays: Arrays, seed: int) -> CaseInputs:
        return stu_inputs.poison(CaseInputs(arrays), seed)

    def batch_size_of(self, arrays: Arrays) -> int:
        return arrays["seq_lengths"].shape[0]

    def valid_rows(self, arrays: Arrays) -> dict[int, np.ndarray]:
        return {arrays["seq_ids"].shape[1]: stu_inputs.valid_mask(arrays)}

    def weight_scale(self, name: str, parameter: torch.Tensor) -> float | None:
        return weight_scale(name, parameter)

    def is_causal(self) -> bool:
        return self.model.mask_contextual_seq_len == 0

    def boundaries(self) -> dict[str, Callable[..., np.ndarray]]:
        edges = partial(close_to_bucket_edges, self.model.num_time_buckets, self.model.embedding_dim)
        return {"HSTUPositionalEncoder": edges}

    def incremental_arguments(self, arrays: Arrays) -> Sequence[dict[str, Any]]:
        # One cache ranks two sets of targets.
        others = {**arrays, "seq_ids": arrays["seq_ids"] % self.model.num_items + 1}
        return dict(arrays), others, dict(arrays)

    def prefill(self, model: Any, **arguments: Any) -> list:
        """Run contextual rows and history; return the cache, a list of (k, v) for the layers. Either side."""
        return model.prefill(**arguments)

    def extend(self, model: Any, cache: list, **arguments: Any) -> tuple[tuple[Any], list]:
        """Append all targets; return their states as in `incremental_outputs`. Either side."""
        return (model.extend(cache=cache, **arguments),), cache

    def unflatten_cache(self, tensors: dict[str, Any]) -> list[tuple[Any, ...]]:
        return unflatten_cache(tensors, CACHE_TENSORS)


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
