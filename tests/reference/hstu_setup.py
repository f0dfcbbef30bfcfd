"""Small HSTU models, batches and the rounding bound that the HSTU tests share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from configs import HSTUConfig
from reference.build import build_hstu
from reference.hstu_dense import HSTUDenseModel
from tests.reference import rounding

PREPROCESSORS = ("positional", "rated", "combined")
ATTENTIONS = (
    ("rel_bias", "bucketed_time_and_position"),
    ("hstu_rel_bias", "positional"),
    ("softmax_rel_bias", "bucketed_time_and_position"),
    ("softmax_rel_bias", "positional"),
    ("softmax_rel_bias", "none"),
)
MAX_LENGTH = 9
# 1 and the maximum are there, in between one that repeats, so that no row is alone with its length.
LENGTHS = (1, MAX_LENGTH, 4, MAX_LENGTH, 2, 1)


def small_config(preprocessor: str = "positional", **changes: object) -> HSTUConfig:
    """Widths that differ from one another, so that a transposed or swapped size cannot fit."""
    fields: dict[str, object] = {
        "num_items": 40,
        "max_sequence_len": MAX_LENGTH,
        "max_output_len": 3,
        "item_embedding_dim": 12,
        "input_preprocessor": preprocessor,
        "rating_embedding_dim": 5 if preprocessor == "rated" else None,
        "num_blocks": 3,
        "num_heads": 2,
        "attention_dim": 6,
        "linear_dim": 7,
        **changes,
    }
    return HSTUConfig(**fields)


def make_model(config: HSTUConfig, layout: str = "dense", seed: int = 0, **options: str) -> HSTUDenseModel:
    """Weights large enough for every block to move its input by about the input's size; exact in float32."""
    model = build_hstu(config, layout, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        # Sorted, so that both layouts draw the same numbers for the same name.
        for name, parameter in sorted(model.named_parameters()):
            scale = 1.0 if "rel_attn_bias" in name else 0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


@dataclass(frozen=True)
class Batch:
    """The arguments of `HSTUDenseModel.score`. ``timestamps`` is (B, N), one for each item."""

    lengths: torch.Tensor
    ids: torch.Tensor
    ratings: torch.Tensor
    timestamps: torch.Tensor
    candidates: torch.Tensor
    positions_per_item: int

    @property
    def payloads(self) -> dict[str, torch.Tensor]:
        timestamps = self.timestamps.repeat_interleave(self.positions_per_item, dim=1)
        return {"timestamps": timestamps, "ratings": self.ratings}

    def score(self, model: HSTUDenseModel) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            return model.score(self.lengths, self.ids, self.payloads, self.candidates)

    def trimmed(self, width: int) -> Batch:
        return replace(
            self,
            ids=self.ids[:, :width],
            ratings=self.ratings[:, :width],
            timestamps=self.timestamps[:, :width],
        )

    def with_lengths(self, lengths: torch.Tensor) -> Batch:
        """The first ``lengths`` events of each row, with the next event's time as the query time."""
        position = torch.arange(self.ids.size(1))
        inside, with_query = position < lengths.unsqueeze(1), position <= lengths.unsqueeze(1)
        return replace(
            self,
            lengths=lengths,
            ids=self.ids * inside,
            ratings=self.ratings * inside,
            timestamps=self.timestamps * with_query,
        )


def make_full_batch(config: HSTUConfig, batch_size: int = len(LENGTHS), seed: int = 0) -> Batch:
    """Every position holds an event; one of them has the padding item 0 in the middle of a history."""
    generator = torch.Generator().manual_seed(seed)
    b, n = batch_size, config.padded_length

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    # From a second to a year between events, uniform in the exponent: all kinds of buckets.
    gaps = (10 ** (torch.rand(b, n, generator=generator, dtype=torch.float64) * 7.5)).long()
    ids = draw(1, config.num_items + 1, b, n)
    ids[b // 2, 1] = 0
    return Batch(
        lengths=torch.full((b,), config.max_sequence_len),
        ids=ids,
        ratings=draw(0, config.num_ratings, b, n),
        timestamps=gaps.cumsum(1) + 978_300_000,
        candidates=draw(1, config.num_items + 1, b, 5),
        positions_per_item=config.positions_per_item,
    )


def make_batch(config: HSTUConfig, lengths: tuple[int, ...] = LENGTHS, seed: int = 0) -> Batch:
    return make_full_batch(config, len(lengths), seed).with_lengths(torch.tensor(lengths))


def longest_sum(config: HSTUConfig) -> int:
    """Terms of the longest sum in the model."""
    heads = config.num_heads
    projected = heads * config.linear_dim * (3 if config.concat_ua else 1)
    return max(config.sequence_width, config.embedding_dim, projected, heads * config.attention_dim)


def rounding_bound(config: HSTUConfig, in_float32: torch.Tensor, in_float64: torch.Tensor) -> float:
    """`tests.reference.rounding.rounding_bound` of a whole model."""
    return rounding.rounding_bound(longest_sum(config), in_float32, in_float64)
