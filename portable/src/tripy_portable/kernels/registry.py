"""Lowerings: from an operation with all static facts known to a function of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tripy_portable.diagnostics import UnsupportedOperation
from tripy_portable.dialect.inference import OpView


@dataclass(frozen=True)
class Lowered:
    """What a plan runs for one operation.

    `run` takes the operands at positions `uses` (all present ones where that is None), and after them
    `tables`: tensors that lowering computed on the host, which a plan keeps where it computes. `is_view`
    says that the result may share memory with its first argument. `takes_out` says that `run` writes element
    by element and accepts torch's `out=`, so that the memory of an argument that dies can be reused.
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
        UnsupportedOperation: naming the operation, where there is none.
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
    """The values of a shape operand, which must be known before a plan can be made.

    Raises:
        UnsupportedOperation: where the shape depends on the data of a tensor.
    """
    values = view.ints(index)
    if values is None:
        raise UnsupportedOperation(
            f"tensorrt.{view.name} with a shape that depends on tensor data is not supported by the portable "
            "runtime; shapes may depend on input shapes and on dimension inputs"
        )
    return values
