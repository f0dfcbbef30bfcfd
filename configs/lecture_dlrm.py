"""The DLRM of the "Fused Kernels" lecture (github.com/kapilsh/cuda-mode-lecture), and its synthetic input."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.fields import MAX_WHOLE, Count, PositiveFloat, Strict

#: Token k of feature f is (f + 1) * stride + k: features share no token, and some exceed int32, as Criteo's.
_TOKEN_STRIDE = 1_300_000_003


class LectureDLRMConfig(Strict):
    """Sizes, with the names of the lecture's hyperparameters where it has them."""

    dense_input_feature_size: Count = Field(description="dense features")
    dense_hidden_sizes: Annotated[tuple[Count, ...], Field(strict=False)] = Field(
        description="a list of the hidden widths of the dense MLP"
    )
    dense_output_size: Count = Field(description="width of the dense MLP's output")
    cardinalities: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] = Field(
        description="a list of the rows of each sparse feature's table, at least one"
    )
    sparse_embedding_size: Count = Field(description="columns of every table")
    prediction_hidden_sizes: Annotated[tuple[Count, ...], Field(strict=False)] = Field(
        description="a list of the hidden widths of the prediction MLP"
    )
    token_hash: Literal["modulus", "index"] = Field(
        default="modulus", description="(x + 1) mod cardinality, or the place among the feature's tokens"
    )

    @property
    def metadata(self) -> dict[str, dict]:
        """The entries of the lecture's metadata file, by sparse feature.

        Each row of a table has a token. In tables of more than two rows the last row but one repeats the
        first one's, which keeps its row. Both ends have a token of their own.
        """
        return {
            f"SPARSE_{feature}": {
                "cardinality": rows,
                "tokenizer_values": [(feature + 1) * _TOKEN_STRIDE + token for token in _tokens(rows)],
            }
            for feature, rows in enumerate(self.cardinalities)
        }


def _tokens(rows: int) -> list[int]:
    return [*range(rows - 2), 0, rows - 2] if rows > 2 else list(range(rows))


class LectureDLRMInput(Strict):
    """The synthetic input of a case."""

    batch_size: Count = Field(description="rows in the batch")
    seed: int = Field(default=0, ge=0, le=MAX_WHOLE, description="seed of the random input and weights")
    logit_scale: PositiveFloat = Field(
        default=1.0, description="factor on the random weights of the last layer, in front of its sigmoid"
    )
