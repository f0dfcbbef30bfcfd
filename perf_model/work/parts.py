"""FLOPs and fewest bytes of one module, and of the parts that models are made of.

Bytes of an index, a length or a timestamp are `INDEX`; of a number in the tested precision, `item`.
"""

from __future__ import annotations

from dataclasses import dataclass

INDEX = 8
Shapes = dict[str, tuple[int, ...]]
"""Shapes of a batch's input arrays by name, as `parity.inputs.arrays` has them."""


@dataclass(frozen=True)
class Work:
    """What a module must do at least, whoever computes it.

    FLOPs are those of its matrix products, two for a multiply and an add. What is elementwise is not counted:
    it runs on other units, and the bytes bound it. Bytes are each input that is needed, each weight and each
    result moved once; nothing is read twice, and what stays inside the module is not moved at all.

    Attributes:
        flops: of matrix products.
        weight_bytes: of parameters; of a table that is looked up in, of the rows that are read.
        input_bytes, output_bytes: of the tensors that enter and leave.
    """

    flops: int = 0
    weight_bytes: int = 0
    input_bytes: int = 0
    output_bytes: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0:
                raise ValueError(f"{name}: {value} is negative; FLOPs and bytes are counts")

    @property
    def bytes(self) -> int:
        """All bytes that must move."""
        return self.weight_bytes + self.input_bytes + self.output_bytes


def around(*parts: Work, inputs: int, outputs: int, flops: int = 0, weights: int = 0) -> Work:
    """A module that holds others: FLOPs and weights are theirs and its own, inputs and outputs its own."""
    return Work(
        flops + sum(part.flops for part in parts),
        weights + sum(part.weight_bytes for part in parts),
        inputs,
        outputs,
    )


def linear(rows: int, fan_in: int, fan_out: int, item: int, bias: bool = True) -> Work:
    """A linear layer over `rows` rows."""
    weights = fan_in * fan_out + (fan_out if bias else 0)
    return Work(2 * rows * fan_in * fan_out, item * weights, item * rows * fan_in, item * rows * fan_out)


def elementwise(elements: int, item: int) -> Work:
    """Something that reads each element and writes it."""
    return Work(0, 0, item * elements, item * elements)


def lookup(indices: int, table_rows: int, dim: int, item: int, index: int = INDEX) -> Work:
    """Rows of a table: each index read, each result written, each row that is named read once.

    How many different rows that is depends on the indices; counted are as many as it can be.
    """
    return Work(0, item * min(indices, table_rows) * dim, index * indices, item * indices * dim)


def chain(widths: list[int], rows: int, item: int, first: str, step: int = 1) -> dict[str, Work]:
    """An MLP: its linear layers, the activations behind them, and the whole, which is named `first`.

    Args:
        widths: of the input, then of each layer's output.
        first: path of the container; layers are numbered behind it, an activation after each of them.
        step: 1 if an activation follows the last layer, too, 0 if not.
    """
    works: dict[str, Work] = {}
    layers = list(zip(widths, widths[1:], strict=False))
    for number, (fan_in, fan_out) in enumerate(layers):
        works[f"{first}.{2 * number}"] = linear(rows, fan_in, fan_out, item)
        if step or number + 1 < len(layers):
            works[f"{first}.{2 * number + 1}"] = elementwise(rows * fan_out, item)
    whole = around(*works.values(), inputs=item * rows * widths[0], outputs=item * rows * widths[-1])
    return {**works, first: whole}
