"""One call of a PyTorch operation, and a change of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, MappingProxyType
from typing import Any

import torch

from parity.base.dispatch import tensors_in

SHIFTED = "shifted by"
"""Words of a change that shifts data."""
LEFT_OUT = "without "
"""Begins the words of a change that leaves an operation or an operand out."""


@dataclass(frozen=True)
class Operation:
    """One call of an operation.

    Attributes:
        func: The `OpOverload`.
        args, kwargs: Its arguments.
        source: The tensor of a change's `source`; None without one.
    """

    func: Any
    args: tuple
    kwargs: dict
    source: torch.Tensor | None = None

    @property
    def name(self) -> str:
        """The name without overload, and without the mark of an in-place operation."""
        return str(self.func.overloadpacket.__name__).rstrip("_")

    @property
    def words(self) -> str:
        name = self.name.removeprefix("_").removeprefix("native_")
        return name.removesuffix("_legit_no_training").removesuffix("_legit")

    def named(self) -> dict[str, Any]:
        """The arguments by name, defaults included."""
        return {
            argument.name: self.args[place]
            if place < len(self.args)
            else self.kwargs.get(argument.name, argument.default_value)
            for place, argument in enumerate(self.func._schema.arguments)
        }

    @property
    def written(self) -> list[str]:
        """Names of the arguments that the operation writes to."""
        return [own.name for own in self.func._schema.arguments if own.alias_info and own.alias_info.is_write]

    def run(self, changed: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """The result with some arguments, by name, in place of its own. No argument is written to."""
        arguments = self.func._schema.arguments
        values = {**self.named(), **changed}
        values |= {name: values[name].clone() for name in self.written}
        positional = [values[argument.name] for argument in arguments if not argument.kwarg_only]
        keywords = {argument.name: values[argument.name] for argument in arguments if argument.kwarg_only}
        return self.func(*positional, **keywords)


@dataclass(frozen=True)
class Place:
    """A place in the code that runs operations.

    Attributes:
        code: The function's code; None for a module of PyTorch without code of the user around it.
        instruction: Number of the instruction.
        words: The line in words, behind "in".
    """

    code: CodeType | None
    instruction: int
    words: str


Source = tuple[int, str | int]
"""See `Change.source`."""


@dataclass(frozen=True)
class Change:
    """A change of one operation.

    Attributes:
        text: The change in words; it completes "the reference".
        result: The result of the changed operation.
        together: The same change of several operations in words, after their number. Empty where one mistake
            changes one operation.
        takes_few: Whether the same change of a few operations is tried beside that of all.
        source: An earlier tensor that the changed operation takes: the number of an operation, and the name
            of its argument or the place of its result. None for a change without one.
        rivals: Results of the same change by other numbers. Where one of them fits as well, the port's result
            does not tell the number.
        origin: The place in the code that runs the operation; None if it is not known.
        function: The operation of PyTorch that is changed; None if it is not known.
    """

    text: str
    result: Callable[[Operation], Any]
    together: str = ""
    takes_few: bool = True
    source: Source | None = None
    rivals: tuple[Callable[[Operation], Any], ...] = ()
    origin: Place | None = None
    function: Any = None


class DoesNotFit(Exception):
    """A change that cannot be made. It is no error of PyTorch's, for which the oracle tries another type."""


def in_place(operation: Operation, result: Any) -> Any:
    """The result of a changed operation, in the tensor that an operation in place returns.

    Code behind another operation may write into its result. It is no tensor that the operation only reads.

    Raises:
        RuntimeError: It has another shape.
    """
    written = operation.written
    if not written and not operation.func.is_view and isinstance(result, torch.Tensor):
        read = tensors_in((*operation.args, *operation.kwargs.values(), operation.source))
        place = result.untyped_storage().data_ptr()
        is_read = any(place == tensor.untyped_storage().data_ptr() for tensor in read)
        return result.clone() if is_read else result
    if len(written) != 1 or not isinstance(result, torch.Tensor):
        return result
    target = operation.named()[written[0]]
    if target.shape != result.shape:
        raise RuntimeError(f"a result of shape {tuple(result.shape)} does not fit in place")
    return target if result is target else target.copy_(result)


def changed(text: str, arguments: Mapping[str, Any]) -> Change:
    """The change of some arguments, by name."""
    return Change(text, lambda operation: operation.run(arguments))
