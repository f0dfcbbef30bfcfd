"""What a plugin is called, what goes in, and how its settings are written.

nvtripy 0.1.7 can call plugins with exactly one attribute and one output, so all settings are one string.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HSTU_ATTENTION = "hstu::research_attention"
"""Fused attention of research HSTU on jagged rows, as `tp.plugin` calls it, with the attribute `settings`.

Inputs, in this order, with L rows of B sequences, H heads, dims K and V, W the width of the position weights:

    q, k               (L, H, K) float32, float16 or bfloat16
    v                  (L, H, V) in the same type
    offsets            (B + 1,) int32 or int64, from 0 to L
    timestamps         (B, N) int64 seconds, N at least the longest row, the query time at a row's length
    position_weights   (2 * W - 1,) in the same type
    time_weights       (num_buckets + 1,) in the same type

The output is (L, H, V).
"""


@dataclass(frozen=True)
class HSTUAttentionSettings:
    """What of the attention no input carries.

    Attributes:
        divisor: what the weights are divided by, after SiLU.
        bucket_divisor: width of a time bucket, in units of ln(second).
    """

    divisor: float
    bucket_divisor: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value}: must be positive and finite")

    def to_string(self) -> str:
        """The plugin's attribute; numbers are written so that they read back exactly."""
        return " ".join(f"{name}={float(value)!r}" for name, value in vars(self).items())

    @classmethod
    def from_string(cls, text: str) -> HSTUAttentionSettings:
        """What `to_string` wrote.

        Raises:
            ValueError: for anything else, with the text and what it should be.
        """
        try:
            pairs = [pair.split("=") for pair in text.split()]
            values = {name: float(value) for name, value in pairs}
            if len(values) != len(pairs):
                raise ValueError("a setting stands there twice")
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"settings={text!r}: {error}; must be {cls(1.0, 1.0).to_string()!r} with your numbers"
            ) from error
