"""Streams of research HSTU: `reference.hstu_stream` and `tripy_port.hstu_stream` against the dense model.

A step of `hstu_stream` must equal the dense model over the whole stream with a mask of C positions; see
`reference.hstu_stream`. The dense model ends at its width W, and a stream goes on. The full forward is
therefore a dense model of a larger width. Its additional positions repeat the last learned position. Its
additional relative positions are zero, since every mask hides them. Its divisor stays W.

Legend: B rows, T items, M new items, N positions of the whole stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from configs import HSTUConfig
from parity.case.streams import Change, FullForward, Step, Stream, Streams

_FIRST_SECOND = 875_000_000
_LONGEST_PAUSE = 7.5
"""Decimal logarithm of the longest pause between two items, in seconds: about a year."""


class HSTUStreams(Streams):
    """Research HSTU over streams of items with ratings and timestamps.

    The arrays of a stream are `ids` and `ratings` (B, T), and `timestamps` (B, T + 1) in seconds. The last
    timestamp is that of the event behind the last item.
    """

    output = "encoded"

    def __init__(self, config: HSTUConfig) -> None:
        self._config = config
        self.width = config.sequence_width
        self.positions_per_item = config.positions_per_item
        blocks = range(config.num_blocks)
        self.cached = ("timestamps", *(f"blocks.{block}.{part}" for block in blocks for part in "kv"))

    def build_reference(self) -> torch.nn.Module:
        from reference.build import build_hstu_stream

        return build_hstu_stream(self._config)

    def build_port(self, dtype: Any) -> Any:
        from tripy_port.build import build_hstu_stream

        return build_hstu_stream(self._config, dtype)

    def build_full(self, weights: Mapping[str, torch.Tensor], items: int, window: int) -> torch.nn.Module:
        from reference.build import build_hstu
        from reference.transduction_dense import HSTUAttentionDense

        config = self._config
        # One more, for the time of the event after the last item.
        length = max(items + 1, config.padded_length) - config.max_output_len
        wide = config.model_copy(update={"max_sequence_len": length})
        model = build_hstu(wide)
        n = wide.sequence_width
        tensors = {name: _widened(name, tensor, n) for name, tensor in weights.items()}
        tensors["_attn_mask"] = ~(torch.ones(n, n, dtype=torch.bool).tril().triu(1 - window))
        model.load_state_dict(tensors)
        for module in model.modules():
            if isinstance(module, HSTUAttentionDense):
                module._divisor = self.width
        return model

    def run_full(self, model: torch.nn.Module, stream: Stream) -> FullForward:
        rows, items = stream.arrays["ids"].shape
        lengths = torch.full((rows,), items)
        ids, ratings = (
            torch.from_numpy(np.pad(stream.arrays[name], ((0, 0), (0, 1)))) for name in ("ids", "ratings")
        )
        times = torch.from_numpy(stream.arrays["timestamps"])
        times = times.repeat_interleave(self.positions_per_item, dim=1)
        payloads = {"timestamps": times, "ratings": ratings}
        embeddings = model.get_item_embeddings(ids)
        encoded, cache = model.generate_user_embeddings(
            lengths, ids, embeddings, payloads, return_cache_states=True
        )
        tensors = [times, *(tensor for v, _, k, _ in cache for tensor in (k, v))]
        return FullForward(encoded, dict(zip(self.cached, tensors, strict=True)))

    def draw(self, first: tuple[int, ...], steps: int, new: tuple[int, ...], seed: int) -> Stream:
        """See `Streams.draw`. Pauses between items go from a second to a year, uniform in the exponent."""
        rng = np.random.default_rng([seed, 0x57E])
        rows = len(first)
        arrivals = [Step(max(first), np.array(first))]
        arrivals += [Step(m, rng.integers(0, m + 1, rows)) for m in (new[i % len(new)] for i in range(steps))]
        items = Stream({}, tuple(arrivals)).items
        gaps = (10 ** rng.uniform(0.0, _LONGEST_PAUSE, (rows, items + 1))).astype(np.int64)
        arrays = {
            "ids": rng.integers(1, self._config.num_items + 1, (rows, items)),
            "ratings": rng.integers(0, self._config.num_ratings, (rows, items)),
            "timestamps": gaps.cumsum(axis=1) + _FIRST_SECOND,
        }
        return Stream(arrays, tuple(arrivals))

    def arguments(self, stream: Stream, begun: np.ndarray, step: Step) -> dict[str, np.ndarray]:
        index = begun[:, None] + np.arange(step.new + 1)
        ids, ratings = (
            np.take_along_axis(stream.arrays[name], index[:, :-1], 1) for name in ("ids", "ratings")
        )
        times = np.take_along_axis(stream.arrays["timestamps"], index, 1)
        positions = step.new * self.positions_per_item
        times = np.repeat(times, self.positions_per_item, axis=1)[:, : positions + 1]
        return {"new_lengths": step.entering, "new_ids": ids, "ratings": ratings, "timestamps": times}

    def append(self, model: Any, state: list, **arguments: Any) -> tuple[Any, list]:
        ids = arguments["new_ids"]
        payloads = {name: arguments[name] for name in ("timestamps", "ratings")}
        return model.extend(state, arguments["new_lengths"], ids, model.get_item_embeddings(ids), payloads)

    def origin(self, name: str) -> str:
        """See `Streams.origin`. A block's keys and values come from the outputs of the block before it.

        If they are the first to fail, the attention of the block before is wrong, and its own cache is right.
        """
        if name == "timestamps":
            return "the cache holds times of no position"
        if name == self.output:
            return f"the attention of block {self._config.num_blocks - 1}, or a later step"
        block = int(name.split(".")[1])
        if block == 0:
            return "the new positions' input, or block 0's projection"
        return f"the attention of block {block - 1}: its own cache is right"

    def mistakes(self) -> dict[str, Change]:
        return {
            f"as if {kind} positions were one too {word}": _rolled(part, shift)
            for shift, word in ((1, "high"), (-1, "low"))
            for kind, part in (("learned", "_pos_emb"), ("relative", "_rel_attn_bias"))
        }


def _widened(name: str, tensor: torch.Tensor, width: int) -> torch.Tensor:
    """A weight of a model of `width` positions that computes the same at the narrower model's positions."""
    role = name.rsplit(".", 1)[-1]
    if name.endswith("_pos_emb.weight"):
        return torch.cat([tensor, tensor[-1:].expand(width - tensor.size(0), -1)])
    if role in ("_pos_w", "_w"):
        more = width - (tensor.size(0) + 1) // 2
        return torch.nn.functional.pad(tensor, (more, more))
    return tensor


def _rolled(part: str, shift: int) -> Change:
    """A change that gives each position the weights of the position `shift` after it."""

    def change(model: torch.nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if part in name and not name.endswith("_ts_w"):
                parameter.data = parameter.data.roll(-shift, dims=0)

    return change
