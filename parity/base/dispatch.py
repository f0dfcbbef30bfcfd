"""The operations that PyTorch dispatches, with composite ones decomposed as without autograd."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


@functools.cache
def _is_composite(func: Any) -> bool:
    """Whether an operation is made of others. To ask PyTorch takes as long as a small operation."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE))


def largest_bytes(result: Any) -> int:
    """Bytes of the largest tensor that an operation returns. Sparse tensors have no `nbytes`."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    return max((one.numel() * one.itemsize for one in results if isinstance(one, torch.Tensor)), default=0)


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors in arguments or results of an operation: tensors, lists of tensors, or other values."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Arguments or results of an operation with `change` of each leaf."""
    if isinstance(tree, (list, tuple)):
        return type(tree)(mapped(change, part) for part in tree)
    if isinstance(tree, dict):
        return {name: mapped(change, part) for name, part in tree.items()}
    return change(tree)


class EachOperation(TorchDispatchMode):
    """A context in which `operation` runs each dispatched operation; a subclass overrides it."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # By default PyTorch guards each operation against torch.compile, whose import takes a second.
        # No operation inside is compiled.
        return False

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """The result of one operation that is not a composite."""
        return func(*args, **kwargs)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if _is_composite(func):
            # Without autograd, `linear` and `einsum` arrive as one operation. This bypasses the subclass's
            # `__enter__`, which may have side effects.
            TorchDispatchMode.__enter__(self)
            try:
                # `func.decompose` would prefer a Python form, which rounds otherwise than PyTorch's own code.
                return func._op_dk(_COMPOSITE, *args, **kwargs)
            finally:
                TorchDispatchMode.__exit__(self, None, None, None)
        return self.operation(func, args, kwargs)
