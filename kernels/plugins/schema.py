"""Names, inputs and settings of the plugins.

nvtripy 0.1.7 calls plugins with exactly one attribute and one output: all settings are one string.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

HSTU_ATTENTION = "hstu::research_attention"
"""Fused attention of research HSTU on jagged rows, as `tp.plugin` calls it, with the attribute `settings`,
which `HSTUAttentionSettings` writes.

Inputs, in this order, with L rows of B sequences, H heads, dims K and V, W the width of the position weights:

    q, k               (L, H, K) float32, float16 or bfloat16
    v                  (L, H, V) in the same type
    offsets            (B + 1,) int32 or int64, from 0 to L
    timestamps         (B, N) int64 seconds, N at least the longest row, the query time at a row's length
    position_weights   (2 * W - 1,) in the same type
    time_weights       (num_buckets + 1,) in the same type

The output is (L, H, V).
"""

STU_ATTENTION = "hstu::production_attention"
"""Fused attention of the production STU on jagged rows, with the attribute `settings`, which
`STUAttentionSettings` writes.

Inputs, in this order, with L rows of B sequences, H heads, dims K and V:

    q, k               (L, H, K) float32, float16 or bfloat16
    v                  (L, H, V) in the same type
    offsets            (B + 1,) int32 or int64, from 0 to L
    num_targets        (B,) in the type of offsets, number of targets at the end of each sequence
    attn_scale         (L,) in the type of q, factor of each row's weights in place of 1 / N; any extent, and
                       not read, without has_attn_scale
    padded             (N,) int32, of which the kernel uses the extent only: N, at least 1 and the longest
    row,
                       determines the number of programs and is the divisor of the weights

The output is (L, H, V).
"""

STU_ATTENTION_CACHED = "hstu::production_attention_cached"
"""`STU_ATTENTION` of new rows behind cached ones, with its settings, of which has_attn_scale is false.

Inputs, in this order, with L new rows of B sequences, as many of each, H heads, dims K and V:

    q                  (L, H, K) float32, float16 or bfloat16, of the new rows
    k, v               (B, N, H, K) and (B, N, H, V) in the same type, all rows of each sequence
    offsets            (B + 1,) int32 or int64, of the new rows, from 0 to L
    firsts             (B,) in the type of offsets, position of each first new row; at most N - L / B
    num_targets        (B,) in the type of offsets, number of targets at the end of each sequence

The output is (L, H, V). N is the divisor of the weights. No kernel of it is compiled ahead of time.
"""

STU_NORM = "hstu::production_norm"
"""The layer norm in front of a production layer's projection, with the attribute `settings`, which
`STUNormSettings` writes.

Inputs, in this order, with L rows:

    x                  (L, D) float32, float16 or bfloat16
    weight, bias       (D,) in the same type

The output is (L, D).
"""

STU_GATE = "hstu::production_gate"
"""The factor of a production layer's output product, [SiLU(u), a, SiLU(u) * norm(a)], with the attribute
`settings`, which `STUGateSettings` writes.

Inputs, in this order, with L rows, H heads, dim V:

    u, a               (L, H * V) float32, float16 or bfloat16
    weight, bias       (H * V,), or (H,) with norm_groups, in the same type

The output is (L, 3 * H * V).
"""

# Reader of a setting of each type, and an example.
_KINDS: dict[str, tuple[Callable[[str], Any], Any]] = {
    "float": (float, 1.0),
    "int": (int, 0),
    "bool": (lambda text: bool(("0", "1").index(text)), False),
}

_S = TypeVar("_S", bound="_Settings")


@dataclass(frozen=True)
class _Settings:
    """Settings of an attention that no input carries, as one string."""

    def to_string(self) -> str:
        """The plugin's attribute; `from_string` reads its numbers back exactly."""
        pairs = ((field, getattr(self, field.name)) for field in fields(self))
        return " ".join(
            f"{field.name}={float(value) if field.type == 'float' else int(value)!r}"
            for field, value in pairs
        )

    @classmethod
    def from_string(cls: type[_S], text: str) -> _S:
        """The settings of a text of `to_string`.

        Raises:
            ValueError: another text; the message has an example.
        """
        kinds = {field.name: _KINDS[str(field.type)] for field in fields(cls)}
        try:
            pairs = [pair.split("=") for pair in text.split()]
            if sorted(name for name, _ in pairs) != sorted(kinds):
                raise ValueError("give each setting once, and no other")
            return cls(**{name: kinds[name][0](value) for name, value in pairs})
        except ValueError as error:
            example = cls(**{name: value for name, (_, value) in kinds.items()}).to_string()
            raise ValueError(f"settings={text!r}: {error}; must be {example!r} with your numbers") from error


def _require_positive(**settings: float) -> None:
    for name, value in settings.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value}: must be positive and finite")


def _require_count(**settings: int) -> None:
    for name, value in settings.items():
        # The kernels' numbers of rows have 32 bits.
        if not 0 <= value < 2**31:
            raise ValueError(f"{name}={value}: must be at least 0 and below 2^31")


@dataclass(frozen=True)
class HSTUAttentionSettings(_Settings):
    """Settings of the research attention.

    Attributes:
        divisor: divisor of the weights, after SiLU.
        bucket_divisor: width of a time bucket in ln(seconds).
    """

    divisor: float
    bucket_divisor: float

    def __post_init__(self) -> None:
        _require_positive(divisor=self.divisor, bucket_divisor=self.bucket_divisor)


@dataclass(frozen=True)
class STUAttentionSettings(_Settings):
    """Settings of the production attention; see `kernels.hstu_attention.ProductionMask`.

    Attributes:
        alpha: factor of the dot product.
        max_attn_len: largest distance that a row attends to, except contextual rows; 0 for no window.
        contextual_seq_len: number of contextual rows in front of each sequence's history.
        has_attn_scale: whether attn_scale replaces 1 / N.
    """

    alpha: float
    max_attn_len: int = 0
    contextual_seq_len: int = 0
    has_attn_scale: bool = False

    def __post_init__(self) -> None:
        _require_positive(alpha=self.alpha)
        _require_count(max_attn_len=self.max_attn_len, contextual_seq_len=self.contextual_seq_len)


@dataclass(frozen=True)
class STUNormSettings(_Settings):
    """Settings of the production layer's norm.

    Attributes:
        eps: added to the variance.
    """

    eps: float

    def __post_init__(self) -> None:
        _require_positive(eps=self.eps)


@dataclass(frozen=True)
class STUGateSettings(_Settings):
    """Settings of the production layer's gate.

    Attributes:
        eps: added to the variance.
        norm_groups: H for a norm of each head; 0 for one norm of all heads.
    """

    eps: float
    norm_groups: int = 0

    def __post_init__(self) -> None:
        _require_positive(eps=self.eps)
        _require_count(norm_groups=self.norm_groups)
