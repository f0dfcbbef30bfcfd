"""DLRMv3 behind its embedding tables, dense: `reference.dlrm_hstu` against `tripy_port.dlrm_hstu`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cases.configured import ConfiguredCase, unflatten_cache
from cases.dlrmv3 import inputs as dlrmv3_inputs
from cases.dlrmv3 import plan as dlrmv3_plan
from cases.dlrmv3.serving import DLRMv3Serving
from cases.dlrmv3.weight_scales import is_of_logits, scale_of_tasks, weight_scale
from cases.stu.bucket_edges import close_to_bucket_edges
from cases.stu.dense import CACHE_TENSORS
from configs import DLRMv3Config
from parity.base.errors import UserError
from parity.case import Arrays, Batches, PlannedBatch
from parity.inputs.arrays import CaseInputs
from reference.preprocessors import ACTION_EMBEDDING_DIM


class DenseDLRMv3(ConfiguredCase):
    """Rows of the embedding tables in, a prediction for each task and candidate out."""

    builder = "build_dlrmv3"
    outputs = whole_outputs = ("predictions",)
    resumed = ("uih_lengths", "num_candidates", *dlrmv3_inputs.CANDIDATES)
    incremental_outputs = {"incremental.predictions": "forward.predictions"}

    def make_inputs(self) -> Batches:
        inputs = dlrmv3_inputs.synthetic(self.config)
        counts = {
            "users": self.batch_size,
            "events": int(inputs["uih_lengths"].sum()),
            "candidates": int(inputs["num_candidates"].sum()),
        }
        return Batches([inputs], f"synthetic, seed {self.seed}", counts)

    def plan(self) -> Iterable[PlannedBatch]:
        return dlrmv3_plan.plan(self.config, _widths(self.model))

    def read(self, path: Path) -> Any:
        raise UserError("--data", str(path), "cannot be read for DLRMv3", "leave --data out")

    def validate(self, arrays: Arrays) -> None:
        dlrmv3_inputs.validate(CaseInputs(arrays), self.model)
        # Padding is masked by axis length, so no other axis may be as long as a padded one.
        h, t = arrays["uih_timestamps"].shape[1], arrays["query_times"].shape[1]
        c = self.model.contextual_seq_len
        others = {self.batch_size_of(arrays), *_widths(self.model)}
        for size in (h, t, h + t, c + h + t):
            if size in others or h in (t, c + t):
                raise UserError(
                    f"{self.name}: padded length",
                    size,
                    "is also the size of the batch or of another axis, so that padding cannot be told apart",
                    "choose another batch size, max_num_candidates or max_uih_len",
                )

    def poison(self, arrays: Arrays, seed: int) -> CaseInputs:
        return dlrmv3_inputs.poison(CaseInputs(arrays), seed)

    def batch_size_of(self, arrays: Arrays) -> int:
        return arrays["uih_lengths"].shape[0]

    def width(self, arrays: Arrays) -> int:
        """N: rows of a padded sequence."""
        h, t = arrays["uih_timestamps"].shape[1], arrays["query_times"].shape[1]
        return self.model.contextual_seq_len + h + t

    def valid_rows(self, arrays: Arrays) -> dict[int, np.ndarray]:
        return dlrmv3_inputs.valid_masks(arrays, self.model.contextual_seq_len)

    def weight_scale(self, name: str, parameter: torch.Tensor) -> float | torch.Tensor | None:
        scale = weight_scale(name, parameter)
        return scale_of_tasks(scale, len(parameter), self.input.logit_scale) if is_of_logits(name) else scale

    def initial_values(self, name: str, own: torch.Tensor) -> torch.Tensor | None:
        # The bits come with a checkpoint. In the constructor's order, a port may take the configuration's.
        return own.flip(0) if name.endswith("._combined_action_weights") else None

    def forbidden_widths(self) -> set[int]:
        """Sizes that no padded axis may have."""
        return _widths(self.model)

    def serving(self) -> DLRMv3Serving:
        return DLRMv3Serving(self.config, self.forbidden_widths())

    def incremental_arguments(self, arrays: Arrays) -> Sequence[dict[str, Any]]:
        own = {name: arrays[name] for name in self.resumed}
        # One cache ranks two sets of candidates; the first ones have other embeddings.
        others = {name: np.roll(array, 1, -1) if array.ndim == 3 else array for name, array in own.items()}
        return dict(arrays), others, own

    def prefill(self, model: Any, **arguments: Any) -> list:
        """Run a whole request; return the cache, a list of (k, v) for the layers. Either side."""
        return model.prefill(**arguments)[1]

    def extend(self, model: Any, cache: list, **arguments: Any) -> tuple[tuple[Any], list]:
        """Rank candidates; return their predictions as in `incremental_outputs`. Either side."""
        return (model.extend(cache=cache, **arguments),), cache

    def unflatten_cache(self, tensors: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return unflatten_cache(tensors, CACHE_TENSORS)

    def keep(self, model: Any, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
        return model.prefill(**arguments)

    def resume(self, model: Any, arguments: Mapping[str, Any], cache: Sequence[Any]) -> Any:
        return model.extend(list(zip(cache[::2], cache[1::2], strict=True)), **arguments)

    def shared_rows(self, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
        users = np.arange(self.batch_size_of(arrays))
        return users * self.width(arrays), arrays["uih_lengths"] + self.model.contextual_seq_len

    def is_causal(self) -> bool:
        return True

    def boundaries(self) -> dict[str, Callable[..., np.ndarray]]:
        edges = partial(close_to_bucket_edges, self.model.num_time_buckets, self.model.embedding_dim)
        return {"HSTUPositionalEncoder": edges}


def _widths(config: DLRMv3Config) -> set[int]:
    """Sizes of the axes of taps that are never padded. The projection of a layer is no tap."""
    d, e, heads = config.embedding_dim, config.embedding_table_dim, config.num_heads
    split = (config.hidden_dim * heads, config.attention_dim * heads)
    actions = config.action_weights or ()
    return {
        *(d, e, 2 * e, heads, *split, config.hidden_dim, config.attention_dim),
        *(config.preprocessor_hidden_dim, config.item_hidden_dim, config.prediction_hidden_dim),
        *(config.num_tasks, config.contextual_seq_len),
        *(len(actions), ACTION_EMBEDDING_DIM * len(actions), ACTION_EMBEDDING_DIM),
    }
