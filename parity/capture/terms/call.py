"""One call of an operation, and the table that maps operations to the formulas of their terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Call:
    """One call of an operation, its arguments by name.

    Attributes:
        func: The `OpOverload`.
        args: Positional arguments.
        kwargs: Keyword arguments.
        outputs: Its results.
    """

    func: Any
    args: tuple
    kwargs: dict
    outputs: Sequence[Any]

    def __getitem__(self, name: str) -> Any:
        """An argument, or its default. Raises `KeyError` for a name that the schema does not have."""
        for place, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                return (
                    self.args[place]
                    if place < len(self.args)
                    else self.kwargs.get(name, argument.default_value)
                )
        raise KeyError(name)

    def get(self, name: str, default: Any = None) -> Any:
        """An argument; `default` if the schema does not have it."""
        try:
            return self[name]
        except KeyError:
            return default

    def tensor(self, place: int) -> torch.Tensor:
        """The tensor argument at a place of the schema."""
        return self[self.func._schema.arguments[place].name]


Formula = Callable[[Call], int]


def by_name(table: Mapping[str, Formula]) -> dict[str, Formula]:
    """A table with names of one operation, from a table with names of several."""
    return {name: formula for names, formula in table.items() for name in names.split()}


def parts(tensor: torch.Tensor) -> int:
    """Real products of one product: a complex product's parts are sums of two."""
    return 2 if tensor.dtype.is_complex else 1
