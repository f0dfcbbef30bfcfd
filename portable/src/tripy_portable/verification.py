"""Checks of a program's operations, with errors that name the operation and the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tripy_portable.diagnostics import GraphError, UnsupportedOperation, VerificationError
from tripy_portable.dialect import legality
from tripy_portable.program import Node, Program


def verify(program: Program) -> None:
    """Checks every operation against the dialect's definition.

    Raises:
        GraphError: an operation is illegal; the message has the operation, the legal types and the actual
            one.
    """
    # Most constants are numbers of shapes, of few types.
    for type in dict.fromkeys(program.types[value] for value in program.constants):
        checked(None, legality.check, "constant", (), {}, (type,))
    for node in program.nodes:
        operands = [None if v is None else program.types[v] for v in node.inputs]
        checked(node, legality.check, node.op, operands, node.attrs, [program.types[v] for v in node.outputs])


def checked(node: Node | None, fn: Callable[..., Any], *args: Any) -> Any:
    """The result of `fn(*args)`; its `VerificationError` becomes a `GraphError` that names the node."""
    try:
        return fn(*args)
    except UnsupportedOperation as error:
        text = str(error)
        cause: Exception = error
    except VerificationError as error:
        text = f"'tensorrt.{node.op if node is not None else 'constant'}' op {error}"
        cause = error
    location = node.location if node is not None else None
    origin = location.origin if location is not None else node.origin if node is not None else ""
    raise GraphError(text, location, origin) from cause
