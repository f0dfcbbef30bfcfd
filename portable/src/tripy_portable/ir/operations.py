"""Values, operations, blocks, functions, modules, and the points where operations are inserted."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tripy_portable.ir.attributes import ArrayAttr, Attribute
from tripy_portable.ir.context import Location, current_location
from tripy_portable.ir.types import FunctionType, RankedTensorType


class Value:
    """An SSA value: a function argument or an operation's result."""

    # No reference to the operation: cycles would wait for a collection of garbage.
    __slots__ = ("type",)

    def __init__(self, type: RankedTensorType):
        self.type = type

    def set_type(self, type: RankedTensorType) -> None:
        """Replaces the type, usually by one with more known dimensions."""
        self.type = type


class BlockArgument(Value):
    """A function's argument."""

    __slots__ = ()


class OpResult(Value):
    """A result of an operation."""

    __slots__ = ()


class Operation:
    """One recorded operation. `attrs` are plain values; an absent optional operand is None."""

    __slots__ = ("attrs", "location", "name", "operands", "results")

    def __init__(
        self,
        name: str,
        operands: Sequence[Value | None],
        attrs: dict[str, Any],
        result_types: Sequence[RankedTensorType],
        location: Location | None = None,
    ):
        self.name = name
        self.operands = list(operands)
        self.attrs = attrs
        self.location = location if location is not None else current_location()
        self.results = [OpResult(type) for type in result_types]
        insertion_point = current_insertion_point()
        if insertion_point is not None:
            insertion_point.block.operations.append(self)

    def __str__(self) -> str:
        attrs = ", ".join(f"{key} = {_short(value)}" for key, value in self.attrs.items())
        operands = ", ".join(str(operand.type) for operand in self.operands if operand is not None)
        results = ", ".join(str(result.type) for result in self.results)
        return f"tensorrt.{self.name} {{{attrs}}} ({operands}) -> ({results})"


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else text[:77] + "..."


class Block:
    """A list of operations and the arguments they may use."""

    def __init__(self, argument_types: Sequence[RankedTensorType] = ()):
        self.arguments = [BlockArgument(type) for type in argument_types]
        self.operations: list[Any] = []
        self.func: FuncOp | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.operations)


class _Stack(threading.local):
    def __init__(self) -> None:
        self.points: list[InsertionPoint] = []


_ENTERED = _Stack()


class InsertionPoint:
    """The block that operations are appended to while this is entered."""

    def __init__(self, block: Block):
        self.block = block

    def __enter__(self) -> InsertionPoint:
        _ENTERED.points.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _ENTERED.points.pop()


def current_insertion_point() -> InsertionPoint | None:
    """The innermost entered insertion point, if any."""
    return _ENTERED.points[-1] if _ENTERED.points else None


class FuncOp:
    """A function: its type, its body, and the attributes of its arguments."""

    def __init__(
        self,
        name: str,
        type: FunctionType,
        *,
        visibility: str | None = None,
        ip: InsertionPoint | None = None,
    ):
        self.name = name
        self.type = type
        self.attributes: dict[str, Attribute] = {}
        self.arg_attrs: ArrayAttr = ArrayAttr([])
        self.body: Block | None = None
        self.returned: list[Value] = []
        insertion_point = ip if ip is not None else current_insertion_point()
        if insertion_point is not None:
            insertion_point.block.operations.append(self)

    def add_entry_block(self) -> Block:
        self.body = Block(self.type.inputs)
        self.body.func = self
        return self.body


class ReturnOp:
    """The values that the function around it returns."""

    def __init__(self, operands: Sequence[Value]):
        insertion_point = current_insertion_point()
        if insertion_point is None:
            raise ValueError("func.return must be built inside a function's body.")
        function = insertion_point.block.func
        if function is None:
            raise ValueError("func.return must be built inside a function's body.")
        function.returned = list(operands)
        # The function is complete. A cycle would wait for a collection of garbage.
        insertion_point.block.func = None


class ModuleOperation:
    """The operation behind a module: its attributes, and its text."""

    def __init__(self, body: Block):
        self.body = body
        self.attributes: dict[str, Attribute] = {}
        self.compiled: Any = None

    def get_asm(self, large_elements_limit: int | None = None, **_: Any) -> str:
        """A readable listing of the module, one operation a line."""
        lines = []
        for func in self.body:
            lines.append(f"func.func @{func.name}{func.type} {{")
            numbers: dict[int, int] = {}
            for value in func.body.arguments:
                numbers[id(value)] = len(numbers)
            for op in func.body:
                for result in op.results:
                    numbers[id(result)] = len(numbers)
                names = ", ".join(f"%{numbers[id(result)]}" for result in op.results)
                uses = ", ".join(f"%{numbers[id(v)]}" for v in op.operands if v is not None)
                lines.append(f"  {names} = {op} [{uses}]")
            lines.append("  return " + ", ".join(f"%{numbers[id(v)]}" for v in func.returned))
            lines.append("}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.get_asm()


class Module:
    """A list of functions; nvtripy puts one in, named `main`."""

    def __init__(self) -> None:
        self.body = Block()
        self.operation = ModuleOperation(self.body)

    @staticmethod
    def create(loc: Location | None = None) -> Module:
        return Module()

    def __str__(self) -> str:
        return self.operation.get_asm()
