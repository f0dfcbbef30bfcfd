"""The operations that a forward dispatches, recorded on the meta device: shapes of any size without data.

These are PyTorch's own kernels, without fusion by a compiler. Composite operations are decomposed as PyTorch
does without autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from parity.base.dispatch import EachOperation


@dataclass(frozen=True)
class Array:
    """A tensor's shape, strides in elements, and bytes of an element."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    floating: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Array:
        return cls(
            tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size(), tensor.dtype.is_floating_point
        )

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def stored_bytes(self) -> int:
        """Bytes of the stored elements: an expanded axis has one."""
        count = self.itemsize
        for size, stride in zip(self.shape, self.strides, strict=True):
            count *= size if stride else 1
        return count

    @property
    def is_contiguous(self) -> bool:
        """Whether the tensor is contiguous, apart from axes of size 1."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


@dataclass(frozen=True)
class Operation:
    """An operation that launches kernels: its name without overload, its inputs and outputs."""

    name: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]


@dataclass(frozen=True)
class Trace:
    """A forward: its operations, and the numbers of views and module calls on the host."""

    operations: tuple[Operation, ...]
    views: int
    modules: int


_NO_KERNEL = frozenset(
    "empty empty_like new_empty detach alias lift_fresh _unsafe_view _local_scalar_dense".split()
)


class _Recording(EachOperation):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.views = 0

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        inputs, outputs = tuple(_arrays([args, kwargs])), tuple(_arrays(result))
        if func.is_view or name in _NO_KERNEL:
            self.views += 1
        elif any(array.elements for array in outputs):
            self.operations.append(Operation(name, inputs, outputs))
        return result


def _arrays(value: Any) -> Iterator[Array]:
    if isinstance(value, torch.Tensor):
        yield Array.of(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _arrays(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays(item)


def trace(forward: Callable[[], Any]) -> Trace:
    """The operations of one call of `forward` over tensors on the meta device.

    Args:
        forward: call of a model or a module that reads no values of tensors.
    """
    modules = 0

    def called(module: torch.nn.Module, args: tuple) -> None:
        nonlocal modules
        modules += 1

    handle = torch.nn.modules.module.register_module_forward_pre_hook(called)
    try:
        with torch.inference_mode(), _Recording() as recording:
            forward()
    finally:
        handle.remove()
    return Trace(tuple(recording.operations), recording.views, modules)
