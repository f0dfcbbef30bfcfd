"""Research HSTU: `reference.hstu` (jagged) and `reference.hstu_dense` against `tripy_port.hstu_dense`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cases.hstu import inputs as hstu_inputs
from cases.hstu import jagged as hstu_jagged
from cases.hstu import recorded as hstu_recorded
from cases.hstu.inputs import HSTUInputs
from cases.hstu.synthetic import synthetic
from configs import CaseConfig, HSTUConfig
from datasets import movielens
from parity.base.errors import UserError
from parity.base.precision import Precision
from parity.capture.captures import ModuleCall, TensorKey
from parity.case import Arrays, Batches, Family
from parity.inputs.arrays import CaseInputs
from parity.verdict.task_metrics.task import Task

CACHE_TENSORS = 4
"""Tensors of one block's cache state: v, padded q, padded k, outputs."""


class HSTUFamily(Family):
    """Sequences of items in, a state for each position, the latest state, and similarities out."""

    name = "hstu"
    builder = "build_hstu"
    layouts = ("dense", "jagged")
    entry = "score"
    outputs = ("encoded", "current", "similarity")
    incremental_outputs = {"incremental.current": "score.current"}

    def build_reference(self, config: HSTUConfig, layout: str) -> torch.nn.Module:
        from reference.build import build_hstu

        return build_hstu(config, layout)

    def gaps(self) -> Mapping[str, str]:
        from tripy_port.gaps import GAPS

        return GAPS

    def synthetic(self, case: CaseConfig) -> Batches:
        inputs = synthetic(case)
        counts = {"users": inputs.batch_size, "history": int(inputs["past_lengths"].sum())}
        return Batches([inputs], f"synthetic, seed {case.input.seed}", counts)

    def recognises(self, path: Path) -> bool:
        return movielens.recognises(path)

    def read(self, path: Path) -> movielens.Ratings:
        return hstu_recorded.read(path)

    def recorded(self, case: CaseConfig, data: movielens.Ratings) -> Batches:
        return hstu_recorded.recorded(case, data)

    def task(self, config: HSTUConfig, weights: Path, precision: Precision) -> Task:
        """The catalogue is every item of the table, as the model looks it up."""
        from parity.inputs.weights import load_export, rounded
        from parity.verdict.task_metrics.ranking import Ranking

        model = self.build_reference(config, "dense").to(torch.float64)
        exact = rounded(rounded(load_export(weights), precision.dtype), torch.float64)
        model.load_state_dict(dict(exact), strict=True)
        with torch.inference_mode():
            items_VD = model.get_item_embeddings(torch.arange(1, config.num_items + 1))
        return Ranking("score.current", items_VD.numpy())

    def validate(self, inputs: CaseInputs, case: CaseConfig) -> None:
        hstu_inputs.validate(HSTUInputs(inputs.arrays), case.model)
        # Padding is masked by axis length, so no other axis may be as long as the sequence.
        other_sizes = {self.batch_size(inputs.arrays), case.input.num_candidates, *_widths(case.model)}
        clash = set(self.valid_rows(inputs.arrays)) & other_sizes
        if clash:
            raise UserError(
                f"{case.name}: padded length",
                clash.pop(),
                "is also the size of the batch or of another axis, so that padding cannot be told apart",
                "choose another batch size, num_candidates or max_output_len",
            )

    def poison(self, inputs: CaseInputs, seed: int) -> HSTUInputs:
        return hstu_inputs.poison(HSTUInputs(inputs.arrays), seed)

    def entry_arguments(self, arrays: Arrays) -> dict[str, Any]:
        return {
            "past_lengths": arrays["past_lengths"],
            "past_ids": arrays["past_ids"],
            "past_payloads": {"timestamps": arrays["timestamps"], "ratings": arrays["ratings"]},
            "item_ids": arrays["item_ids"],
        }

    def batch_size(self, arrays: Arrays) -> int:
        return arrays["past_lengths"].shape[0]

    def rows(self, arrays: Arrays, rows: slice) -> dict[str, np.ndarray]:
        """Users are independent: attention, norms and biases stay within one. Candidates may be shared."""
        shared = arrays["item_ids"].shape[0] == 1
        return {
            name: array if name == "item_ids" and shared else array[rows] for name, array in arrays.items()
        }

    def _lengths(self, arrays: Arrays) -> torch.Tensor:
        """(B,) positions that each row takes: its items, twice that where ratings follow items."""
        positions = arrays["timestamps"].shape[1] // arrays["past_ids"].shape[1]
        return torch.tensor(arrays["past_lengths"]) * positions

    def valid_rows(self, arrays: Arrays) -> dict[int, np.ndarray]:
        lengths = arrays["past_lengths"][:, None]
        masks = {}
        items, positions = arrays["past_ids"].shape[1], arrays["timestamps"].shape[1]
        for size in {items, positions}:
            masks[size] = np.arange(size)[None, :] < lengths * (size // items)
        return masks

    def boundary(
        self, call: ModuleCall, inputs: Mapping[str, torch.Tensor], config: HSTUConfig
    ) -> np.ndarray | None:
        """The time bucket of a pair is floor(ln(max(|dt|, 1)) / divisor) in float32, clamped above.

        Its pre-image is within round-off of an integer when logarithm and division, each good to one
        ulp, could land on either side: relative distance up to 4 * 2^-24, as both factors round twice.
        """
        if call.kind != "RelativeBucketedTimeAndPositionBasedBias":
            return None
        argument = call.args[0] if call.args else call.kwargs["all_timestamps"]
        assert isinstance(argument, TensorKey)
        # User by user: a batch of pairs in float64 may not fit into memory several times.
        return np.stack([_close_to_an_edge(ts_N, config) for ts_N in inputs[argument.key].numpy()])

    def incremental_arguments(
        self, config: HSTUConfig, arrays: Arrays
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if config.positions_per_item > 1:
            # An item and its rating are two positions; the incremental forward appends one.
            return None
        if config.normalization == "softmax_rel_bias" and config.num_blocks > 1:
            # Its denominators run over later positions too, so that appending changes earlier rows.
            return None
        arguments = self.entry_arguments(arrays)
        del arguments["item_ids"]
        lengths = arrays["past_lengths"]
        before = arguments | {"past_lengths": np.maximum(lengths - 1, 1)}
        return before, arguments | {"delta_x_offsets": lengths - 1}

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
    ) -> tuple[Any]:
        """Append one item to each row; return its (B, D) state as in `incremental_outputs`. Either side."""
        return (
            model.encode(
                past_lengths=past_lengths,
                past_ids=past_ids,
                past_embeddings=model.get_item_embeddings(past_ids),
                past_payloads=past_payloads,
                delta_x_offsets=delta_x_offsets,
                cache=cache,
            ),
        )

    def unflatten_cache(self, tensors: Mapping[str, torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        """Rebuild the cache from the tensors that `prefill` returned, in order."""
        flat = list(tensors.values())
        return [tuple(flat[start : start + CACHE_TENSORS]) for start in range(0, len(flat), CACHE_TENSORS)]

    def pad_taps(self, tensors: Mapping[str, torch.Tensor], arrays: Arrays) -> dict[str, torch.Tensor]:
        return hstu_jagged.pad_taps(tensors, self._lengths(arrays), arrays["timestamps"].shape[1])

    def jagged_arguments(self, path: str, args: list, kwargs: dict, arrays: Arrays) -> tuple[list, dict]:
        return hstu_jagged.jagged_arguments(path, args, kwargs, self._lengths(arrays))


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


HSTU_FAMILY = HSTUFamily()
