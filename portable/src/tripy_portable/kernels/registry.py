"""Lowerings: from an operation with known static attributes to a function of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tripy_portable.diagnostics import UnsupportedOperation
from tripy_portable.dialect.inference import OpView


@dataclass(slots=True)
class Lowered:
    """A plan's function for one operation.

    Attributes:
        run: the function of the operands at `uses`, followed by `tables`.
        uses: positions of the operands; None for all present ones.
        is_view: whether the result may share memory with the first argument.
        takes_out: whether `run` writes element by element and accepts torch's `out=`. A plan then reuses the
            memory of an argument after its last use.
        tables: tensors that the lowering computes on the host and a plan stores on its device.
    """

    run: Callable[..., Any]
    uses: tuple[int, ...] | None = None
    is_view: bool = False
    takes_out: bool = False
    tables: tuple[torch.Tensor, ...] = ()


LoweringFn = Callable[[OpView], Lowered]
_LOWERINGS: dict[str, LoweringFn] = {}


def lowers(*names: str) -> Callable[[LoweringFn], LoweringFn]:
    """Registers a lowering for operations."""

    def register(fn: LoweringFn) -> LoweringFn:
        for name in names:
            _LOWERINGS[name] = fn
        return fn

    return register


def lower(view: OpView) -> Lowered:
    """The function that computes an operation. `view.declared` must hold the final result types.

    Raises:
        UnsupportedOperation: the operation has no kernel; the message names it.
    """
    try:
        lowering = _LOWERINGS[view.name]
    except KeyError:
        raise UnsupportedOperation(f"tensorrt.{view.name} is not supported by the portable runtime") from None
    return lowering(view)


def identity(x: Any) -> Any:
    """Returns its argument."""
    return x


def known(view: OpView, index: int) -> list[int]:
    """The values of a shape operand, which a plan needs.

    Raises:
        UnsupportedOperation: the shape depends on the data of a tensor.
    """
    values = view.ints(index)
    if values is None:
        raise UnsupportedOperation(
            f"tensorrt.{view.name} with a shape that depends on tensor data is not supported by the portable "
            "runtime; shapes may depend on input shapes and on dimension inputs"
        )
    return values
