"""Streams, and what the full forward over a whole one gives: the truth that no cache has touched.

A step of `hstu_stream` must give what the dense model gives for the same rows when it runs over the whole
stream with a mask of C positions, see `reference.hstu_stream`. The dense model ends at its width W; a stream
goes on. The truth is therefore a dense model of a larger width, whose additional weights are the ones that
`hstu_stream` defines: the last learned position again, and no weight for relative positions that no mask lets
through. Its divisor stays W.

Legend: B rows, T items of the longest row, M new items, C capacity in positions, N positions, K draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from configs import HSTUConfig
from parity.base.precision import Precision
from parity.capture.torch_hooks import tapped
from parity.inputs.weights import rounded
from parity.runners.oracle.rounding import Roundings
from reference.build import build_hstu, build_hstu_stream
from reference.transduction_dense import HSTUAttentionDense

DRAWS = 7
"""Of what rounding gives the truth: a step has few rows, which the reference's error is known badly from."""

Weights = Mapping[str, torch.Tensor]
Altered = Callable[[torch.nn.Module], None]


@dataclass(frozen=True)
class Step:
    """An append: how many items are given, and how many of each row stay in the cache, (B,)."""

    new: int
    kept: np.ndarray


@dataclass(frozen=True)
class Stream:
    """Items of several rows in order of time, and how they arrive.

    ``ids`` and ``ratings`` are (B, T), ``timestamps`` (B, T + 1): of each item, and of what follows the last.
    """

    ids: np.ndarray
    ratings: np.ndarray
    timestamps: np.ndarray
    steps: tuple[Step, ...]

    def items(self, begun: np.ndarray, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ids, ratings (B, new) and timestamps (B, new + 1) of the items behind the first ``begun`` (B,)."""
        index = begun[:, None] + np.arange(new + 1)
        ids, ratings = (np.take_along_axis(each, index[:, :-1], 1) for each in (self.ids, self.ratings))
        return ids, ratings, np.take_along_axis(self.timestamps, index, 1)


def synthetic_stream(
    config: HSTUConfig, first: tuple[int, ...], steps: int, new: tuple[int, ...], seed: int
) -> Stream:
    """A stream whose rows begin with ``first`` items each, in one step, and go on for ``steps`` more.

    Steps bring ``new`` items in turn, of which each row keeps any number. Pauses between items go from a
    second to a year, uniform in the exponent.
    """
    rng = np.random.default_rng([seed, 0x57E])
    rows = len(first)
    arrivals = [Step(max(first), np.array(first))]
    arrivals += [Step(m, rng.integers(0, m + 1, rows)) for m in (new[i % len(new)] for i in range(steps))]
    kept = np.cumsum([step.kept for step in arrivals], axis=0)
    items = int(kept[-1].max()) + max(step.new for step in arrivals)
    gaps = (10 ** rng.uniform(0.0, 7.5, (rows, items + 1))).astype(np.int64)
    return Stream(
        ids=rng.integers(1, config.num_items + 1, (rows, items)),
        ratings=rng.integers(0, config.num_ratings, (rows, items)),
        timestamps=gaps.cumsum(axis=1) + 875_000_000,
        steps=tuple(arrivals),
    )


@dataclass(frozen=True)
class Full:
    """A full forward over a stream: states (B, N, D), times (B, N), and k and v (B, N, *) of each block."""

    encoded: torch.Tensor
    timestamps: torch.Tensor
    cache: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    def kv(self, name: str) -> torch.Tensor:
        """Keys or values (B, N, *) of all positions, by the tap's name, such as "blocks.0.k"."""
        _, block, which = name.split(".")
        return self.cache[int(block)]["kv".index(which)]

    def taps(self, begun: np.ndarray, new: int, kept: np.ndarray, capacity: int) -> dict[str, torch.Tensor]:
        """What a step must give by name, when ``begun`` (B,) positions came before and ``kept`` (B,) stay.

        Empty slots are zero.
        """
        end = torch.from_numpy(begun + kept)
        slot = end.unsqueeze(1) - capacity + torch.arange(capacity)
        row = torch.from_numpy(begun).unsqueeze(1) + torch.arange(new)
        found = {"lengths": end, "timestamps": rows_of(self.timestamps.unsqueeze(2), slot).squeeze(2)}
        for block, (k, v) in enumerate(self.cache):
            found |= {f"blocks.{block}.k": rows_of(k, slot), f"blocks.{block}.v": rows_of(v, slot)}
        return found | {"encoded": rows_of(self.encoded, row)}


def rows_of(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """(B, N, *) and (B, X) -> (B, X, *), zero where the index is negative."""
    chosen = values.gather(1, index.clamp(min=0).unsqueeze(2).expand(-1, -1, values.size(2)))
    return chosen * (index >= 0).unsqueeze(2).to(values.dtype)


class Truth:
    """Full forwards over one stream: in float64, at the tested precision, and with roundings drawn.

    Args:
        config: the model's.
        weights: of the model, float32.
        capacity: C.
    """

    def __init__(
        self, config: HSTUConfig, weights: Weights, precision: Precision, stream: Stream, capacity: int
    ) -> None:
        self.config, self.stream, self.precision, self.capacity = config, stream, precision, capacity
        self._weights = rounded(weights, precision.dtype)
        self.oracle = self.altered(capacity)
        self.reference = self._run(self._model(capacity).to(precision.dtype))
        model = self._model(capacity).double()
        drawn = []
        for seed in range(DRAWS):
            with Roundings(precision, seed):
                drawn.append(self._run(model).encoded)
        self.draws = torch.stack(drawn)
        sums = self._sums_of_a_step()
        self.longest_sum, self.modules = max(sums), sum(length > 0 for length in sums)

    def _sums_of_a_step(self) -> list[int]:
        """The longest sum of each module in the largest step, 0 for no arithmetic."""
        rows, new = self.stream.ids.shape[0], max(step.new for step in self.stream.steps)
        model = build_hstu_stream(self.config)
        zeros = torch.zeros(rows, new, dtype=torch.int64)
        times = torch.zeros(rows, new * self.config.positions_per_item + 1, dtype=torch.int64)
        with torch.inference_mode(), tapped(model, record_calls=True) as capture:
            embeddings = model.get_item_embeddings(zeros)
            payloads = {"timestamps": times, "ratings": zeros}
            model.extend(model.empty_state(rows, self.capacity), zeros[:, 0], zeros, embeddings, payloads)
        return list(capture.longest_sums.values())

    def altered(self, window: int, alter: Altered | None = None) -> Full:
        """The float64 forward of a model with another window, or one that `alter` has changed."""
        model = self._model(window).double()
        if alter is not None:
            alter(model)
        return self._run(model)

    def _model(self, window: int) -> torch.nn.Module:
        """A dense model as wide as the stream, in which a position sees the latest ``window``."""
        config, width = self.config, self.config.sequence_width
        items = max(self.stream.ids.shape[1] + 1, config.padded_length)
        wide = config.model_copy(update={"max_sequence_len": items - config.max_output_len})
        model = build_hstu(wide)
        weights = {
            name: _widened(name, tensor, wide.sequence_width) for name, tensor in self._weights.items()
        }
        n = wide.sequence_width
        weights["_attn_mask"] = ~(torch.ones(n, n, dtype=torch.bool).tril().triu(1 - window))
        model.load_state_dict(weights)
        for module in model.modules():
            if isinstance(module, HSTUAttentionDense):
                module._divisor = width
        return model

    def _run(self, model: torch.nn.Module) -> Full:
        stream, per_item = self.stream, self.config.positions_per_item
        rows, items = stream.ids.shape
        lengths = torch.full((rows,), items)
        # A column more, for the time of the last item's successor.
        ids, ratings = (
            torch.from_numpy(np.pad(each, ((0, 0), (0, 1)))) for each in (stream.ids, stream.ratings)
        )
        times = torch.from_numpy(stream.timestamps).repeat_interleave(per_item, dim=1)
        payloads = {"timestamps": times, "ratings": ratings}
        with torch.inference_mode():
            embeddings = model.get_item_embeddings(ids)
            encoded, cache = model.generate_user_embeddings(
                lengths, ids, embeddings, payloads, return_cache_states=True
            )
        return Full(encoded, times, tuple((k, v) for v, _, k, _ in cache))


def _widened(name: str, tensor: torch.Tensor, width: int) -> torch.Tensor:
    """A weight of a model of ``width`` positions that does the same at those of the narrower one."""
    role = name.rsplit(".", 1)[-1]
    if name.endswith("_pos_emb.weight"):
        return torch.cat([tensor, tensor[-1:].expand(width - tensor.size(0), -1)])
    if role in ("_pos_w", "_w"):
        more = width - (tensor.size(0) + 1) // 2
        return torch.nn.functional.pad(tensor, (more, more))
    return tensor
