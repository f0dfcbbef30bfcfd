"""FLOPs and fewest bytes of one module."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """The least work of a module, in any implementation.

    FLOPs are those of matrix products, two for a multiply and an add. Elementwise work is not counted: it
    runs on other units, and bytes bound it. Each needed input, each weight and each result moves once.
    Tensors inside the module do not move.

    Attributes:
        flops: FLOPs of matrix products.
        weight_bytes: bytes of parameters; of a table, bytes of the rows that are read.
        input_bytes, output_bytes: bytes of the tensors that enter and leave.
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
        """Sum of all bytes."""
        return self.weight_bytes + self.input_bytes + self.output_bytes
