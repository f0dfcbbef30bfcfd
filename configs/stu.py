"""The production STU stack, and its synthetic requests.

Public sources of the field names and of their meaning: meta-recsys/generative-recommenders,
``generative_recommenders/modules/{stu,hstu_transducer,positional_encoder,postprocessors}.py``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from configs.fields import MAX_WHOLE, Count, PositiveFloat, Rate, Strict, raise_problems
from configs.hstu import MAX_SEQUENCE_LEN
from configs.quantisation import Quantisable


class STUConfig(Quantisable):
    """The production HSTU around its STU stack; contextual features, history and targets share a table."""

    num_items: Count = Field(description="largest id; ids are 1..num_items and 0 is padding")
    contextual_seq_len: int = Field(
        default=0, ge=0, le=MAX_SEQUENCE_LEN, description="rows of context in front of the history"
    )
    contextual_attention: bool = Field(
        default=True, description="whether contextual rows see all the history; else they are its first rows"
    )
    max_uih_len: int = Field(ge=1, le=MAX_SEQUENCE_LEN, description="longest history of a user")
    max_num_targets: Count = Field(description="most candidates that one request ranks")
    embedding_dim: Count = Field(description="width of embeddings and of the residual stream")
    num_layers: Count = Field(description="STU layers, one after the other")
    num_heads: Count = Field(description="attention heads of a layer")
    attention_dim: Count = Field(description="query/key width of a head")
    hidden_dim: Count = Field(description="value width of a head")
    attn_alpha: PositiveFloat | None = Field(
        default=None, description="factor of query times key; left out: 1 / sqrt(attention_dim)"
    )
    max_attn_len: int = Field(
        default=0, ge=0, description="largest distance that a row attends to; 0: no limit"
    )
    use_group_norm: bool = Field(default=False, description="norm of the attention's output by head")
    num_position_buckets: Count = Field(default=8192, description="rows of the position table")
    num_time_buckets: Count = Field(default=2048, description="time buckets above the first")
    output_postprocessor: Literal["l2_norm", "layer_norm", "timestamp_layer_norm"] = "timestamp_layer_norm"
    output_dropout_ratio: Rate = Field(default=0.0, description="training only; kept for the record")

    def products(self) -> tuple[str, ...]:
        """Both projections of each layer."""
        return tuple(
            f"_stu_module._stu_layers.{layer}.{name}"
            for layer in range(self.num_layers)
            for name in ("_uvqk_weight", "_output_weight")
        )

    @property
    def padded_length(self) -> int:
        """N: rows of a padded sequence, and the divisor of the attention weights."""
        return self.contextual_seq_len + self.max_uih_len + self.max_num_targets

    @property
    def mask_contextual_seq_len(self) -> int:
        """Contextual rows that the mask treats apart from the history."""
        return self.contextual_seq_len if self.contextual_attention else 0

    @model_validator(mode="after")
    def _fields_agree(self) -> STUConfig:
        problems = self.quantisation_problems()
        if self.contextual_seq_len >= self.num_position_buckets:
            problems.append(
                f"contextual_seq_len: {self.contextual_seq_len} leaves the history no row of the "
                f"position table; give less than num_position_buckets {self.num_position_buckets}"
            )
        raise_problems(problems)
        return self


class STUInput(Strict):
    """The synthetic input of a case."""

    batch_size: Count = Field(description="users in the batch")
    seed: int = Field(default=0, ge=0, le=MAX_WHOLE, description="seed of the random input and weights")
    attn_scale: bool = Field(
        default=False, description="whether each row has a factor of its own in place of 1 / N"
    )
