"""DLRMv3, the generative recommender of MLPerf's inference benchmark, and its synthetic requests.

Public sources of the field names and of their meaning: mlcommons/inference, recommendation/dlrm_v3,
``configs.py`` and ``generative_recommenders/modules/dlrm_hstu.py``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from configs.fields import MAX_WHOLE, Count, PositiveFloat, Strict, raise_problems
from configs.hstu import MAX_SEQUENCE_LEN


class DLRMv3Config(Strict):
    """The ranking model behind its embedding tables, which are no part of it."""

    embedding_table_dim: Count = Field(description="columns of the embedding tables")
    preprocessor_hidden_dim: Count = Field(description="inner width of the preprocessor's MLPs")
    item_hidden_dim: Count = Field(description="inner width of the candidates' MLP")
    prediction_hidden_dim: Count = Field(description="inner width of the predictions' MLP")
    embedding_dim: Count = Field(description="width of the residual stream")
    contextual_max_lengths: Annotated[tuple[Count, ...], Field(strict=False)] = Field(
        default=(), description="rows of each contextual feature, in order"
    )
    contextual_min_seq_lengths: Annotated[tuple[int, ...], Field(strict=False)] = Field(
        default=(), description="by feature, the fewest rows of history and candidates together that it needs"
    )
    action_weights: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] | None = Field(
        default=None, description="bits of each action; left out: a model without actions"
    )
    max_uih_len: int = Field(ge=1, le=MAX_SEQUENCE_LEN, description="longest history of a user")
    max_num_candidates: Count = Field(description="most candidates that one request ranks")
    num_layers: Count = Field(description="STU layers, one after the other")
    num_heads: Count = Field(description="attention heads of a layer")
    attention_dim: Count = Field(description="query/key width of a head")
    hidden_dim: Count = Field(description="value width of a head")
    use_group_norm: bool = Field(default=False, description="norm of the attention's output by head")
    num_position_buckets: Count = Field(description="rows of the position table")
    num_time_buckets: Count = Field(description="time buckets above the first")
    output_postprocessor: Literal["layer_norm", "timestamp_layer_norm"] = "timestamp_layer_norm"
    num_classification_tasks: Count = Field(description="tasks whose prediction is a probability")
    num_regression_tasks: int = Field(ge=0, description="tasks whose prediction is a number")

    @property
    def contextual_seq_len(self) -> int:
        """C: rows in front of the history."""
        return sum(self.contextual_max_lengths)

    @property
    def merged_length(self) -> int:
        """M: rows of history and candidates."""
        return self.max_uih_len + self.max_num_candidates

    @property
    def padded_length(self) -> int:
        """N: rows of a padded sequence, and the divisor of the attention weights."""
        return self.contextual_seq_len + self.merged_length

    @property
    def num_tasks(self) -> int:
        """K: predictions of a candidate."""
        return self.num_classification_tasks + self.num_regression_tasks

    @model_validator(mode="after")
    def _fields_agree(self) -> DLRMv3Config:
        problems = []
        if len(self.contextual_max_lengths) != len(self.contextual_min_seq_lengths):
            problems.append(
                f"contextual_min_seq_lengths: {len(self.contextual_min_seq_lengths)} for "
                f"{len(self.contextual_max_lengths)} features; give one for each of contextual_max_lengths"
            )
        for row, least in enumerate(self.contextual_min_seq_lengths):
            if least < 0:
                problems.append(f"contextual_min_seq_lengths[{row}]: {least} is below 0; give at least 0")
        if self.contextual_seq_len >= self.num_position_buckets:
            problems.append(
                f"contextual_max_lengths: {self.contextual_seq_len} rows leave the history no row of the "
                f"position table; give less than num_position_buckets {self.num_position_buckets}"
            )
        raise_problems(problems)
        return self


class DLRMv3Input(Strict):
    """The synthetic input of a case."""

    batch_size: Count = Field(description="users in the batch")
    table_rows: Count = Field(description="rows of each table that the input's embeddings are drawn from")
    seed: int = Field(default=0, ge=0, le=MAX_WHOLE, description="seed of the random input and weights")
    logit_scale: PositiveFloat = Field(
        default=1.0, description="factor on the random weights of the first task's logit"
    )
