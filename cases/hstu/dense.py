"""Research HSTU: `reference.hstu` (jagged) and `reference.hstu_dense` against `tripy_port.hstu_dense`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cases.configured import ConfiguredCase, unflatten_cache
from cases.hstu import inputs as hstu_inputs
from cases.hstu import plan as hstu_plan
from cases.hstu.inputs import HSTUInputs
from cases.hstu.synthetic import synthetic
from cases.hstu.weight_scales import weight_scale
from configs import HSTUConfig
from parity.base.errors import UserError
from parity.base.precision import Precision
from parity.base.task import Task
from parity.case import Arrays, Batches, PlannedBatch

if TYPE_CHECKING:
    from datasets.movielens import Ratings

_APPENDS = 2
"""Items of each row that the incremental forward appends one by one."""
CACHE_TENSORS = 4
"""Tensors of one block's cache state: v, padded q, padded k, outputs."""


class DenseHSTU(ConfiguredCase):
    """Sequences of items in, a state for each position, the latest state, and similarities out."""

    builder = "build_hstu"
    entry = "score"
    outputs = ("encoded", "current", "similarity")
    whole_outputs = ("encoded",)
    incremental_outputs = {"incremental.current": "score.current"}

    def make_inputs(self) -> Batches:
        inputs = synthetic(self.config)
        counts = {"users": inputs.batch_size, "history": int(inputs["past_lengths"].sum())}
        return Batches([inputs], f"synthetic, seed {self.seed}", counts)

    def plan(self) -> Iterable[PlannedBatch]:
        return hstu_plan.plan(self.config, {self.input.num_candidates, *_widths(self.model)})

    def recognises(self, path: Path) -> bool:
        # Every process of a run imports this module, and Arrow, which only recorded data needs, takes long.
        from datasets import movielens

        return movielens.recognises(path)

    def read(self, path: Path) -> Ratings:
        from cases.hstu import recorded

        return recorded.read(path)

    def recorded(self, data: Ratings) -> Batches:
        from cases.hstu import recorded

        return recorded.recorded(self.config, data)

    def task(self, weights: Path, precision: Precision) -> Task:
        """The catalogue is every item of the table, as the model looks it up."""
        from parity.inputs.weights import load_export, rounded
        from parity.verdict.task_metrics.ranking import Ranking

        model = self.build_reference().to(torch.float64)
        exact = rounded(rounded(load_export(weights), precision.dtype), torch.float64)
        model.load_state_dict(dict(exact), strict=True)
        with torch.inference_mode():
            items_VD = model.get_item_embeddings(torch.arange(1, self.model.num_items + 1))
        return Ranking("score.current", items_VD.numpy())

    def validate(self, arrays: Arrays) -> None:
        hstu_inputs.validate(HSTUInputs(arrays), self.model)
        # Padding is masked by axis length, so no other axis may be as long as the sequence.
        other_sizes = {self.batch_size_of(arrays), self.input.num_candidates, *_widths(self.model)}
        clash = set(self.valid_rows(arrays)) & other_sizes
        if clash:
            raise UserError(
                f"{self.name}: padded length",
                clash.pop(),
                "is also the size of the batch or of another axis, so that padding cannot be told apart",
                "choose another batch size, num_candidates or max_output_len",
            )

    def poison(self, arrays: Arrays, seed: int) -> HSTUInputs:
        return hstu_inputs.poison(HSTUInputs(arrays), seed)

    def entry_arguments(self, arrays: Arrays) -> dict[str, Any]:
        return {
            "past_lengths": arrays["past_lengths"],
            "past_ids": arrays["past_ids"],
            "past_payloads": {name: arrays[name] for name in ("timestamps", "ratings") if name in arrays},
            "item_ids": arrays["item_ids"],
        }

    def batch_size_of(self, arrays: Arrays) -> int:
        return arrays["past_lengths"].shape[0]

    def rows(self, arrays: Arrays, rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        """Users are independent: attention, norms and biases stay within one. Candidates may be shared."""
        shared = arrays["item_ids"].shape[0] == 1
        return {
            name: array if name == "item_ids" and shared else array[rows] for name, array in arrays.items()
        }

    def valid_rows(self, arrays: Arrays) -> dict[int, np.ndarray]:
        lengths = arrays["past_lengths"][:, None]
        masks = {}
        items, per_item = arrays["past_ids"].shape[1], self.model.positions_per_item
        for size in {items, items * per_item}:
            masks[size] = np.arange(size)[None, :] < lengths * (size // items)
        if self.model.normalization == "softmax_rel_bias":
            # The blocks run at full width.
            width = self.model.sequence_width
            masks[width] = np.arange(width)[None, :] < lengths * per_item
        return masks

    def weight_scale(self, name: str, parameter: torch.Tensor) -> float | None:
        return weight_scale(name, parameter, self.input.bias_scale, self.input.stream_scale)

    def initial_values(self, name: str, own: torch.Tensor) -> torch.Tensor | None:
        if not name.endswith("._item_id_to_category_id"):
            return None
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(self.model.num_categories, own.shape, generator=generator, dtype=own.dtype)

    def is_causal(self) -> bool:
        return True

    def boundaries(self) -> dict[str, Callable[..., np.ndarray]]:
        return {"RelativeBucketedTimeAndPositionBasedBias": self._close_to_bucket_edges}

    def _close_to_bucket_edges(self, all_timestamps: torch.Tensor, *_: torch.Tensor) -> np.ndarray:
        """The time bucket of a pair is floor(ln(max(|dt|, 1)) / divisor) in float32, clamped above.

        Logarithm and division are each good to one ulp, and both factors round twice. The bucket may change
        if the pre-image has a relative distance of up to 4 * 2^-24 from an integer.
        """
        # User by user: a batch of pairs in float64 may not fit into memory several times.
        return np.stack([_close_to_an_edge(ts_N, self.model) for ts_N in all_timestamps.numpy()])

    def incremental_arguments(self, arrays: Arrays) -> Sequence[dict[str, Any]] | None:
        config = self.model
        if config.positions_per_item > 1:
            # An item and its rating are two positions; the incremental forward appends one.
            return None
        if config.normalization == "softmax_rel_bias" and config.num_blocks > 1:
            # Its denominators run over later positions too, so that appending changes earlier rows.
            return None
        arguments = self.entry_arguments(arrays)
        del arguments["item_ids"]
        steps = []
        for missing in range(_APPENDS, -1, -1):
            # A row of one item has no item in front of it: the append takes the place of another one.
            lengths = np.maximum(arrays["past_lengths"] - missing, 1)
            if missing == _APPENDS and lengths.size > 1:
                # The longest row begins with all its items. Each append replaces one, and hides those behind.
                longest = arrays["past_lengths"].argmax()
                lengths[longest] = arrays["past_lengths"][longest]
            steps.append(arguments | {"past_lengths": lengths})
            if missing < _APPENDS:
                steps[-1] |= {"delta_x_offsets": lengths - 1, "return_cache_states": missing > 0}
        # Where an append comes, the cache is that of another item: a row that stays old is wrong.
        ids_BN = arrays["past_ids"]
        place_1N, filled_B1 = np.arange(ids_BN.shape[1])[None], steps[1]["delta_x_offsets"][:, None]
        is_replaced_BN = (place_1N >= filled_B1) & (place_1N < arrays["past_lengths"][:, None])
        steps[0]["past_ids"] = np.where(is_replaced_BN, ids_BN % config.num_items + 1, ids_BN)
        return steps

    def prefill(self, model: Any, past_lengths: Any, past_ids: Any, past_payloads: dict) -> list:
        """Run the history and return the cache: a list of (v, q, k, outputs) for the blocks. Either side."""
        _, cache = model.encode(
            past_lengths=past_lengths,
            past_ids=past_ids,
            past_embeddings=model.get_item_embeddings(past_ids),
            past_payloads=past_payloads,
            return_cache_states=True,
        )
        return cache

    def extend(
        self,
        model: Any,
        cache: list,
        past_lengths: Any,
        past_ids: Any,
        past_payloads: dict,
        delta_x_offsets: Any,
        return_cache_states: bool,
    ) -> tuple[tuple[Any], list | None]:
        """Append one item to each row; return its (B, D) state as in `incremental_outputs`. Either side."""
        results = model.encode(
            past_lengths=past_lengths,
            past_ids=past_ids,
            past_embeddings=model.get_item_embeddings(past_ids),
            past_payloads=past_payloads,
            delta_x_offsets=delta_x_offsets,
            cache=cache,
            return_cache_states=return_cache_states,
        )
        current, states = results if return_cache_states else (results, None)
        return (current,), states

    def unflatten_cache(self, tensors: dict[str, Any]) -> list[tuple[Any, ...]]:
        return unflatten_cache(tensors, CACHE_TENSORS)


def _close_to_an_edge(ts_N: np.ndarray, config: HSTUConfig) -> np.ndarray:
    """(N,) timestamps -> (N, N) bool, the pairs whose time bucket round-off could change."""
    next_N = np.concatenate([ts_N[1:], ts_N[-1:]])
    delta_NM = np.abs(next_N[:, None] - ts_N[None, :])
    bucket_NM = np.log(np.maximum(delta_NM, 1).astype(np.float64)) / config.bucket_divisor
    nearest_NM = np.rint(bucket_NM)
    close_NM = np.abs(bucket_NM - nearest_NM) <= 4 * 2.0**-24 * bucket_NM
    # Zero is exact (ln 1), and past the last bucket both sides clamp to the same one.
    return close_NM & (nearest_NM >= 1) & (nearest_NM <= config.num_buckets)


def _widths(config: HSTUConfig) -> set[int]:
    """Sizes of the axes that are never padded."""
    heads = config.num_heads
    split = (config.linear_dim * heads, config.attention_dim * heads)
    return {
        config.item_embedding_dim,
        config.embedding_dim,
        heads,
        *split,
        config.linear_dim,
        config.attention_dim,
        2 * sum(split),
    }
