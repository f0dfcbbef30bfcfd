"""Schemes of quantisation by name: the numbers of codes, the span of a scale, and the quantised operands.

A name has the type of the codes first and the span of a scale of the weights last. In schemes with `weights`
in the name, the input of the product stays as it is. In the others it has codes of the same type, with one
scale for the whole tensor. Schemes with `rows` are for tables, the others for products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Numbers = Literal["int8", "fp8", "int4"]
Span = Literal["tensor", "channel", "blocks", "rows"]


@dataclass(frozen=True)
class Scheme:
    """One scheme.

    Attributes:
        numbers: Type of the codes; fp8 is float8 E4M3.
        span: Weights that share a scale: all of them, those of one output, a block of inputs of one output,
            or a row of a table.
        inputs: Whether the input of the product is quantised, too.
        block_size: Inputs of a product in a block.
    """

    numbers: Numbers
    span: Span
    inputs: bool = False
    block_size: int = 32

    @property
    def is_of_tables(self) -> bool:
        """Whether it quantises the rows of a table, and no product."""
        return self.span == "rows"

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 4 if self.numbers == "int4" else 8


def operands(scheme: Scheme | None, precision: str) -> str:
    """What a product multiplies: codes, by their type, where both operands have some; else numbers."""
    return scheme.numbers if scheme is not None and scheme.inputs else precision


SCHEMES: dict[str, Scheme] = {
    "int8_tensor": Scheme("int8", "tensor", inputs=True),
    "int8_channel": Scheme("int8", "channel", inputs=True),
    "int8_weights_tensor": Scheme("int8", "tensor"),
    "int8_weights_channel": Scheme("int8", "channel"),
    "fp8_tensor": Scheme("fp8", "tensor", inputs=True),
    "fp8_channel": Scheme("fp8", "channel", inputs=True),
    "fp8_weights_tensor": Scheme("fp8", "tensor"),
    "fp8_weights_channel": Scheme("fp8", "channel"),
    "int4_weights_blocks": Scheme("int4", "blocks"),
    "int8_rows": Scheme("int8", "rows"),
    "int4_rows": Scheme("int4", "rows"),
}
