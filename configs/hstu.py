"""Research HSTU, and its synthetic histories.

Public sources of the field names and of their meaning: meta-recsys/generative-recommenders,
``generative_recommenders/research/modeling/sequential/{hstu,encoder_utils}.py``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from configs.fields import MAX_WHOLE, Count, PositiveFloat, Rate, Strict, raise_problems
from configs.quantisation import Quantisable

#: Largest side, in positions, of the attention mask and of each head's scores in memory.
MAX_SEQUENCE_LEN = 16_384


class HSTUConfig(Quantisable):
    """The research HSTU of "Actions Speak Louder than Words" (ICML'24, arXiv 2402.17152).

    ``attention_dim`` and ``linear_dim`` (a head's query/key and value widths) may be left out; each is
    then ``embedding_dim / num_heads``, as in every public configuration. The division must be exact.
    """

    num_items: Count = Field(description="largest item id; ids are 1..num_items and 0 is padding")
    max_sequence_len: int = Field(ge=1, le=MAX_SEQUENCE_LEN, description="longest history of a user")
    max_output_len: Count = Field(
        description="positions behind the history; at least one, which carries the query's timestamp"
    )
    item_embedding_dim: Count = Field(description="width of an item's embedding")
    embedding: Literal["local", "categorical"] = Field(
        default="local", description="one row an item, or one row a category of items"
    )
    num_categories: Count | None = Field(default=None, description="categories; categorical embedding only")
    input_preprocessor: Literal["positional", "rated", "combined"] = Field(
        default="positional",
        description="positions only; ratings concatenated to items; items and ratings interleaved",
    )
    rating_embedding_dim: Count | None = Field(default=None, description="rating width; rated input only")
    num_ratings: int = Field(default=6, ge=2, le=MAX_WHOLE, description="rating levels: 0..num_ratings-1")
    num_blocks: Count = Field(description="transduction units, one after the other")
    num_heads: Count = Field(description="attention heads of a block")
    attention_dim: Count = Field(default=None, validate_default=True, description="query/key width of a head")
    linear_dim: Count = Field(default=None, validate_default=True, description="value width of a head")
    normalization: Literal["rel_bias", "hstu_rel_bias", "softmax_rel_bias"] = "rel_bias"
    linear_config: Literal["uvqk"] = "uvqk"
    linear_activation: Literal["silu", "none"] = "silu"
    concat_ua: bool = Field(default=False, description="project [u, a, u * a] in place of u * a")
    relative_attention_bias: Literal["bucketed_time_and_position", "positional", "none"] = (
        "bucketed_time_and_position"
    )
    num_buckets: Count = Field(default=128, description="time buckets above the first")
    bucket_divisor: PositiveFloat = Field(
        default=0.301, ge=0.01, description="width of a time bucket in ln(seconds), 0.01 or more"
    )
    epsilon: PositiveFloat = Field(default=1e-6, description="added to the variance in the layer norms")
    output_postprocessor: Literal["l2_norm", "layer_norm"] = "l2_norm"
    output_epsilon: PositiveFloat = Field(
        default=1e-6, description="least norm of a state, or added to its variance, in the output"
    )
    linear_dropout_rate: Rate = Field(default=0.0, description="training only; kept for the record")
    attn_dropout_rate: Rate = Field(default=0.0, description="training only; kept for the record")

    def products(self) -> tuple[str, ...]:
        """Both projections of each block."""
        return tuple(
            f"_hstu._attention_layers.{block}.{name}"
            for block in range(self.num_blocks)
            for name in ("_uvqk", "_o")
        )

    @property
    def embedding_dim(self) -> int:
        """Width of the residual stream: the item's, plus the rating's where the two are concatenated."""
        return self.item_embedding_dim + (self.rating_embedding_dim or 0)

    @property
    def positions_per_item(self) -> int:
        """Sequence positions that one item takes: two where its rating follows it."""
        return 2 if self.input_preprocessor == "combined" else 1

    @property
    def padded_length(self) -> int:
        """Items in a padded row of input."""
        return self.max_sequence_len + self.max_output_len

    @property
    def sequence_width(self) -> int:
        """W: positions in a padded row, side of the attention mask, divisor of the attention weights."""
        return self.padded_length * self.positions_per_item

    @field_validator("attention_dim", "linear_dim", mode="before")
    @classmethod
    def _default_head_width(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None:
            return value
        earlier = info.data
        width, heads = earlier.get("item_embedding_dim"), earlier.get("num_heads")
        if width is None or heads is None:
            return 1  # the field that is wrong has its own error already, and no model will be built
        width += earlier.get("rating_embedding_dim") or 0
        if width % heads:
            divisors = ", ".join(str(n) for n in range(1, width + 1) if width % n == 0)
            raise ValueError(
                f"missing, and embedding_dim {width} is not divisible by num_heads {heads}; "
                f"give {info.field_name}, or a num_heads among {divisors}"
            )
        return width // heads

    @model_validator(mode="after")
    def _fields_agree(self) -> HSTUConfig:
        problems = [
            *_goes_with("num_categories", self.num_categories, "embedding", self.embedding, "categorical"),
            *_goes_with(
                "rating_embedding_dim",
                self.rating_embedding_dim,
                "input_preprocessor",
                self.input_preprocessor,
                "rated",
            ),
        ]
        if self.num_categories is not None and self.num_categories > self.num_items:
            problems.append(
                f"num_categories: {self.num_categories} is more than num_items {self.num_items}; "
                f"give at most {self.num_items}"
            )
        if self.relative_attention_bias == "none" and self.normalization != "softmax_rel_bias":
            problems.append(
                f"relative_attention_bias: 'none' does not go with normalization '{self.normalization}', "
                "which adds a bias; use 'positional' or 'bucketed_time_and_position', "
                "or normalization 'softmax_rel_bias'"
            )
        raise_problems([*problems, *self.quantisation_problems()])
        return self


class HSTUInput(Strict):
    """The synthetic input of a case."""

    batch_size: Count = Field(description="users in the batch")
    num_candidates: Count = Field(description="items scored for each user")
    seed: int = Field(default=0, ge=0, le=MAX_WHOLE, description="seed of the random input and weights")
    bias_scale: PositiveFloat = Field(
        default=1.0, description="standard deviation of the attention bias's random weights"
    )
    stream_scale: PositiveFloat = Field(
        default=1.0, description="factor on the random weights that decide the size of the residual stream"
    )
    lengths: Annotated[tuple[Count, ...], Field(strict=False)] | None = Field(
        default=None, description="history length of each user; left out: long-tailed, both ends present"
    )


def _goes_with(field: str, value: int | None, choice: str, chosen: str, needed: str) -> list[str]:
    """Problems of a field that one value of another field requires and all others exclude."""
    if chosen == needed and value is None:
        return [f"{field}: missing, and {choice} is '{needed}'; give {field}"]
    if chosen != needed and value is not None:
        return [f"{field}: {value} has no effect with {choice} '{chosen}'; remove it, or use '{needed}'"]
    return []
