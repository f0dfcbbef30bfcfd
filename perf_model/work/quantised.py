"""FLOPs and fewest bytes of products and tables in a scheme of quantisation.

Codes have the scheme's bits, and the scales of a product the type of the model. Inputs of a product that are
quantised enter as numbers of the model: a kernel makes their codes. Its FLOPs run at the rate of
`parity.base.quantisation.operands`.
"""

from __future__ import annotations

from configs import Scheme
from parity.base.work import Work

_ROW_ENDS = {8: 8, 4: 4}
"""Bytes of the scale and the bias of a table's row, by the bits of its codes."""


def product(
    rows: int, inputs: int, outputs: int, item: int, scheme: Scheme | None = None, bias: bool = False
) -> Work:
    """A product of `rows` rows with a matrix (inputs, outputs), whose weights have a scheme, or none.

    Args:
        item: bytes of a number of the model.
        bias: whether a bias of the model's type is added.
    """
    weights = item * inputs * outputs
    if scheme is not None:
        weights = -(-inputs * outputs * scheme.bits // 8) + item * scales(inputs, outputs, scheme)
    weights += item * outputs if bias else 0
    return Work(2 * rows * inputs * outputs, weights, item * rows * inputs, item * rows * outputs)


def scales(inputs: int, outputs: int, scheme: Scheme) -> int:
    """The number of scales of a product's weights and of its input."""
    of_weights = {"tensor": 1, "channel": outputs, "blocks": -(-inputs // scheme.block_size) * outputs}
    return of_weights[scheme.span] + (1 if scheme.inputs else 0)


def row_bytes(columns: int, item: int, scheme: Scheme | None) -> int:
    """Bytes of a table's row: a byte a column with float32 scale and bias, or half a byte with half ones."""
    if scheme is None:
        return item * columns
    return -(-columns * scheme.bits // 8) + _ROW_ENDS[scheme.bits]
