"""FLOPs and fewest bytes of the parts of models.

An index, a length or a timestamp has `INDEX` bytes; a number in the tested precision has `item` bytes.
"""

from __future__ import annotations

from parity.base.work import Work

INDEX = 8
Shapes = dict[str, tuple[int, ...]]
"""Shapes of a batch's input arrays by name, as `parity.inputs.arrays` has them."""


def around(*parts: Work, inputs: int, outputs: int, flops: int = 0, weights: int = 0) -> Work:
    """A module with parts: FLOPs and weights of the parts and its own, inputs and outputs its own."""
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
    """One read and one write of each element."""
    return Work(0, 0, item * elements, item * elements)


def lookup(indices: int, table_rows: int, dim: int, item: int, index: int = INDEX) -> Work:
    """A lookup in a table: reads each index and each different row once, writes each result.

    The number of different rows is the largest possible one.
    """
    return Work(0, item * min(indices, table_rows) * dim, index * indices, item * indices * dim)


def chain(widths: list[int], rows: int, item: int, first: str, step: int = 1) -> dict[str, Work]:
    """An MLP: its linear layers, their activations, and the whole under the path `first`.

    Args:
        widths: width of the input, then of each layer's output.
        rows: rows of the batch.
        item: bytes of a number.
        first: path of the container, which numbers layers and activations.
        step: 1 if an activation follows the last layer, else 0.
    """
    works: dict[str, Work] = {}
    layers = list(zip(widths, widths[1:], strict=False))
    for number, (fan_in, fan_out) in enumerate(layers):
        works[f"{first}.{2 * number}"] = linear(rows, fan_in, fan_out, item)
        if step or number + 1 < len(layers):
            works[f"{first}.{2 * number + 1}"] = elementwise(rows * fan_out, item)
    whole = around(*works.values(), inputs=item * rows * widths[0], outputs=item * rows * widths[-1])
    return {**works, first: whole}
