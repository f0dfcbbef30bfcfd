"""Records one operation: its result types are inferred and checked first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tripy_portable.diagnostics import DiagnosticInfo, MLIRError, VerificationError
from tripy_portable.dialect.inference import OpView, infer
from tripy_portable.ir.attributes import Attribute
from tripy_portable.ir.context import current_location
from tripy_portable.ir.operations import Operation, OpResult, Value
from tripy_portable.ir.types import RankedTensorType


def _plain(value: Any) -> Any:
    """Attributes and sequences as plain values that a program can store."""
    if isinstance(value, Attribute):
        return value.value
    if isinstance(value, (list, tuple)):
        return tuple(value)
    return value


def build(
    name: str,
    operands: Sequence[Value | None],
    attrs: dict[str, Any],
    declared: Sequence[RankedTensorType] = (),
) -> list[OpResult]:
    """The results of a new operation at the current insertion point.

    Args:
        name: the operation's name in the dialect.
        operands: its operands; None for an optional one that is absent.
        attrs: its attributes by name.
        declared: its result types, as far as the caller knows them.

    Raises:
        MLIRError: the operands, attributes and declared types do not fit each other.
    """
    attrs = {key: _plain(value) for key, value in attrs.items()}
    types = [None if operand is None else operand.type for operand in operands]
    try:
        results = infer(OpView(name, types, attrs, declared, [None] * len(types)))
    except VerificationError as error:
        location = current_location()
        message = f"'tensorrt.{name}' op {error}"
        info = DiagnosticInfo(f"{location}: {message}", location)
        raise MLIRError("Operation creation failed", [info]) from error
    return Operation(name, operands, attrs, results).results
