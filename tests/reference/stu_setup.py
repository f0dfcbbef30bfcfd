"""Small STU models and batches that the tests of the production STU share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from configs import STUConfig
from reference.build import build_stu
from reference.hstu_transducer import HSTUTransducer
from tests.reference.rounding import max_difference, rounding_bound

MAX_HISTORY, MAX_TARGETS = 11, 4
#: Between them every option of the stack. Contextual rows, window, group norm, alpha, factors of rows.
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "contextual": {"contextual_seq_len": 3},
    "contextual_prefix": {"contextual_seq_len": 2, "contextual_attention": False},
    "window": {"max_attn_len": 4, "attn_alpha": 0.6},
    "all": {"contextual_seq_len": 1, "max_attn_len": 5, "use_group_norm": True},
}
POSTPROCESSORS = ("l2_norm", "layer_norm", "timestamp_layer_norm")


def small_config(variant: str = "plain", **changes: object) -> STUConfig:
    """Widths that differ from one another, so that a transposed or swapped size cannot fit."""
    fields: dict[str, object] = {
        "num_items": 40,
        "max_uih_len": MAX_HISTORY,
        "max_num_targets": MAX_TARGETS,
        "embedding_dim": 12,
        "num_layers": 3,
        "num_heads": 2,
        "attention_dim": 5,
        "hidden_dim": 7,
        "num_position_buckets": 9,
        "num_time_buckets": 30,
        **VARIANTS[variant],
        **changes,
    }
    return STUConfig(**fields)


def make_model(config: STUConfig, layout: str = "dense", seed: int = 0, **options: str) -> HSTUTransducer:
    """In float64, with weights large enough for every layer to move its input by about the input's size."""
    model = build_stu(config, layout, **options).to(torch.float64)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        # Sorted, so that both layouts draw the same numbers for the same name.
        for _, parameter in sorted(model.named_parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5)
    return model


@dataclass(frozen=True)
class Batch:
    """The arguments of `HSTUTransducer.forward`."""

    seq_lengths: torch.Tensor
    seq_ids: torch.Tensor
    seq_timestamps: torch.Tensor
    num_targets: torch.Tensor

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        return self.seq_lengths, self.seq_ids, self.seq_timestamps, self.num_targets

    @property
    def valid(self) -> torch.Tensor:
        """(B, N) bool: rows of the sequences."""
        return torch.arange(self.seq_ids.size(1)) < self.seq_lengths.unsqueeze(1)


def make_batch(config: STUConfig, seed: int = 0) -> Batch:
    """Histories and targets of several lengths, the shortest and the longest among them; garbage as
    padding."""
    generator = torch.Generator().manual_seed(seed)
    history = torch.tensor([MAX_HISTORY, 0, 5, 1, MAX_HISTORY, 7])
    targets = torch.tensor([MAX_TARGETS, 1, 0, MAX_TARGETS, 2, 3])
    shape = (history.numel(), config.padded_length)
    minutes = torch.randint(0, 1200, shape, generator=generator).sort(dim=1).values
    return Batch(
        seq_lengths=config.contextual_seq_len + history + targets,
        seq_ids=torch.randint(1, config.num_items + 1, shape, generator=generator),
        seq_timestamps=1_400_000_000 + 61 * minutes,
        num_targets=targets,
    )


def longest_sum(config: STUConfig) -> int:
    """Terms of the longest sum in the model: of attention, the projections, or their input."""
    heads = config.num_heads
    joined = 3 * heads * config.hidden_dim
    return max(config.padded_length, config.embedding_dim, joined, heads * config.attention_dim)


def assert_same_function(
    config: STUConfig,
    found: torch.Tensor,
    expected: torch.Tensor,
    in_float32: torch.Tensor,
    in_float64: torch.Tensor | None = None,
) -> None:
    """Two evaluations of a model are as close as rounding explains.

    Args:
        in_float32, in_float64: The function on the same inputs in these types, see `rounding_bound`. The
            latter is ``expected`` unless given.
    """
    exact = expected if in_float64 is None else in_float64
    limit = rounding_bound(longest_sum(config), in_float32, exact, expected.dtype)
    assert max_difference(found, expected) <= limit
