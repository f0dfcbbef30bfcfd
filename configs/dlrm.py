"""DLRM, and its synthetic click logs.

Fields have the names of the public program's options (facebookresearch/dlrm, ``dlrm_s_pytorch.py``), with
underscores: ``arch_mlp_bot`` is ``--arch-mlp-bot``.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from configs.fields import MAX_WHOLE, Count, PositiveFloat, Strict, raise_problems
from configs.quantisation import Quantisable

# Half of float32's range: a width that comes out just below the end of the range is rounded beyond it.
_LN_LARGEST = math.log(2.0**127)
_WIDTHS = r"^[1-9][0-9]{0,9}(-[1-9][0-9]{0,9})*$"
_TWO_WIDTHS = r"^[1-9][0-9]{0,9}(-[1-9][0-9]{0,9})+$"


class DLRMConfig(Quantisable):
    """The deep learning recommendation model of arXiv:1906.00091, with the options of the public program."""

    arch_mlp_bot: str = Field(
        pattern=_TWO_WIDTHS,
        description="widths of the bottom MLP in quotes, dense features first, such as '13-512-256-64-16'",
    )
    arch_mlp_top: str = Field(
        pattern=_WIDTHS,
        description="widths of the top MLP in quotes, behind the interaction's, such as '512-256-1'",
    )
    arch_sparse_feature_size: Count = Field(description="columns of the embedding tables")
    arch_embedding_size: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = Field(
        description="a list of the rows of each table, at least one"
    )
    max_rows_per_table: Count | None = Field(
        default=None, description="cap on every table's rows; left out: as given in arch_embedding_size"
    )
    arch_interaction_op: Literal["dot", "cat", "sum"] = "dot"
    arch_interaction_itself: bool = Field(default=False, description="dot: pair each vector with itself too")
    sigmoid_bot: int = Field(
        default=-1, ge=-1, description="layer of the bottom MLP under a sigmoid; -1: none"
    )
    sigmoid_top: int | None = Field(
        default=None, ge=-1, description="layer of the top MLP under a sigmoid; left out: the last; -1: none"
    )
    loss_threshold: float = Field(
        default=0.0, ge=0.0, lt=0.5, description="clamp of the output to [threshold, 1 - threshold]; 0: none"
    )
    qr_flag: bool = Field(default=False, description="quotient-remainder tables above qr_threshold rows")
    qr_operation: Literal["mult", "add", "concat"] = "mult"
    qr_collisions: Count = Field(default=4, description="categories that share a quotient row")
    qr_threshold: Count = Field(default=200, description="rows up to which tables stay plain")
    md_flag: bool = Field(default=False, description="mixed-dimension tables above md_threshold rows")
    md_temperature: float = Field(default=0.3, ge=0.0, allow_inf_nan=False, description="0 shrinks nothing")
    md_round_dims: bool = Field(default=False, description="round dimensions to powers of two")
    md_threshold: Count = Field(default=200, description="rows up to which tables stay plain")
    weighted_pooling: Literal["learned", "fixed"] | None = Field(
        default=None, description="a weight for each row of each table, or none"
    )
    max_bag_size: Count | None = Field(
        default=None, description="longest bag that the port is compiled for; left out: any"
    )

    def products(self) -> tuple[str, ...]:
        """The linear layers of both MLPs."""
        counts = {"bot_l": len(self.bottom_widths) - 1, "top_l": len(self.top_widths)}
        return tuple(f"{name}.{2 * layer}" for name, count in counts.items() for layer in range(count))

    def tables(self) -> tuple[str, ...]:
        """The plain tables."""
        if self.qr_flag or self.md_flag:
            return ()
        return tuple(f"emb_l.{table}" for table in range(len(self.arch_embedding_size)))

    @property
    def bottom_widths(self) -> tuple[int, ...]:
        """Dense features, then the output of each layer of the bottom MLP."""
        return tuple(map(int, self.arch_mlp_bot.split("-")))

    @property
    def top_widths(self) -> tuple[int, ...]:
        """The output of each layer of the top MLP; its input is the interaction's width."""
        return tuple(map(int, self.arch_mlp_top.split("-")))

    @property
    def table_rows(self) -> tuple[int, ...]:
        """Rows of each table, capped."""
        cap = self.max_rows_per_table
        return tuple(rows if cap is None else min(rows, cap) for rows in self.arch_embedding_size)

    @property
    def top_sigmoid(self) -> int:
        """``sigmoid_top`` with its default filled in."""
        return len(self.top_widths) - 1 if self.sigmoid_top is None else self.sigmoid_top

    @model_validator(mode="after")
    def _fields_agree(self) -> DLRMConfig:
        problems = []
        concat = self.qr_flag and self.qr_operation == "concat"
        width, last = self.arch_sparse_feature_size * (2 if concat else 1), self.bottom_widths[-1]
        if last != width:
            doubled = ", doubled by qr_operation 'concat'" if concat else ""
            problems.append(
                f"arch_mlp_bot: '{self.arch_mlp_bot}' ends in {last}, and arch_sparse_feature_size is "
                f"{self.arch_sparse_feature_size}{doubled}; end it in {width}"
            )
        if concat and min(self.table_rows) <= self.qr_threshold:
            problems.append(
                f"qr_threshold: {self.qr_threshold} keeps tables plain and so half as wide as 'concat' makes "
                f"the others; give less than {min(self.table_rows)}, the smallest table's rows"
            )
        for name, layer, layers in (
            ("sigmoid_bot", self.sigmoid_bot, len(self.bottom_widths) - 1),
            ("sigmoid_top", self.top_sigmoid, len(self.top_widths)),
        ):
            if layer >= layers:
                problems.append(
                    f"{name}: {layer} is not one of the MLP's {layers} layers; give -1, or 0 to {layers - 1}"
                )
        if self.qr_flag and self.md_flag:
            problems.append("md_flag: True does not go with qr_flag; set only one of them")
        if self.weighted_pooling and (self.qr_flag or self.md_flag):
            problems.append(
                f"weighted_pooling: '{self.weighted_pooling}' needs plain tables; unset qr_flag and md_flag"
            )
        problems += self.quantisation_problems()
        size = self.arch_sparse_feature_size
        if self.md_flag and self.md_round_dims and size & (size - 1):
            problems.append(
                f"md_round_dims: True changes arch_sparse_feature_size {size}; give a power of two there"
            )
        # The widths follow from powers of the rows in float32.
        power = self.md_temperature * math.log(min(self.table_rows)) + math.log(size)
        if self.md_flag and power > _LN_LARGEST:
            most = (_LN_LARGEST - math.log(size)) / math.log(min(self.table_rows))
            problems.append(
                f"md_temperature: {self.md_temperature} makes widths beyond float32; give at most {most:.3g}"
            )
        raise_problems(problems)
        return self


class DLRMInput(Strict):
    """The synthetic input of a case."""

    batch_size: Count = Field(description="rows in the batch")
    seed: int = Field(default=0, ge=0, le=MAX_WHOLE, description="seed of the random input and weights")
    logit_scale: PositiveFloat = Field(
        default=1.0, description="factor on the random weights of the last layer, in front of its sigmoid"
    )
    longest_bag: Count = Field(default=1, description="indices of the longest bag; the shortest has none")
    per_sample_weights: bool = Field(default=False, description="whether each index has a weight")
