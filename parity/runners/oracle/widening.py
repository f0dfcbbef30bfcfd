"""The oracle's arithmetic where a model names a type itself: float64 there, too.

A model may compute in float32 by its own will, in a run of any precision:

    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)

PyTorch would do so in the oracle as well. Its error would be the reference's: the reference would seem exact,
and a right port with another order of operations would seem wrong. The same holds for the tested precision
by name, for tensors that a model makes in PyTorch's default type, such as `torch.linspace(0, 1, 8)`, and for
integers that arithmetic turns into it, such as `torch.log(count)`.

Other types, such as float16 in a run of fp32, are part of what the model computes, and stay. So is the cast
of an integer to float32 by name: `seconds.float()` moves the moments of this century to the next of one in
128 seconds, in each program that has this cast.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from parity.base.dispatch import EachOperation, mapped, tensors_in
from parity.base.memory import is_allocation_failure
from parity.base.precision import Precision
from parity.base.real_numbers import complex_dtype

_LOG = logging.getLogger(__name__)
_LARGE_INTEGERS = {torch.int32, torch.int64, torch.uint32, torch.uint64}
"""Types with numbers that float32 does not hold."""


class InFloat64(EachOperation):
    """Inside, operations compute in float64 where the model asks for float32 or for the tested precision.

    An operation that PyTorch has in float32 alone runs in it, and the log says so.

    Args:
        precision: The tested precision.
    """

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self._tested = precision.dtype
        real = {torch.float32, precision.dtype}
        self._wide = dict.fromkeys(real, torch.float64)
        self._wide |= dict.fromkeys(map(complex_dtype, real), torch.complex128)

    def operation(self, func: Any, args: tuple, kwargs: dict) -> Any:
        if func._schema.is_mutable:
            return func(*args, **kwargs)
        if func is torch.ops.aten.view.dtype:
            return func(self._of_size(*args), args[1])
        if func is torch.ops.aten._to_copy.default and kwargs.get("dtype") is torch.float32:
            args = (_of_float32(args[0]), *args[1:])
        if kwargs.get("dtype") in self._wide:
            kwargs = {**kwargs, "dtype": self._wide[kwargs["dtype"]]}
        types = {tensor.dtype for tensor in tensors_in((*args, *kwargs.values()))}
        if types & self._wide.keys():
            args, kwargs = self._widened(args), self._widened(kwargs)
        elif not any(dtype.is_floating_point or dtype.is_complex for dtype in types):
            args, kwargs = _without_default_type(func, args, kwargs)
        try:
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            # A view has every type: it fails for its sizes.
            is_of_type = not func.is_view and types & {torch.float64, *self._wide}
            if is_allocation_failure(error) or not is_of_type:
                raise
            try:
                result = func(*_narrowed(args), **_narrowed(kwargs))
            except (RuntimeError, NotImplementedError):
                raise error from None
            _state(str(func))
            return self._widened(result)

    def _widened(self, tree: Any) -> Any:
        def wide(leaf: Any) -> Any:
            is_narrow = isinstance(leaf, torch.Tensor) and leaf.dtype in self._wide
            return leaf.to(self._wide[leaf.dtype]) if is_narrow else leaf

        return mapped(wide, tree)

    def _of_size(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The tensor in the type that a run of the tested precision has, where its bits are read."""
        if tensor.dtype is not torch.float64 or dtype.itemsize == tensor.itemsize:
            return tensor
        return tensor.to(self._tested if dtype.itemsize == self._tested.itemsize else torch.float32)


def _of_float32(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; large integers as the numbers of float32 next to them."""
    # Integers that differ from one rounding sample to the next are no plain tensor.
    if tensor.dtype not in _LARGE_INTEGERS or type(tensor) is not torch.Tensor:
        return tensor
    with _disable_current_modes():
        rounded = tensor.to(torch.float32).to(torch.float64)
        # Most integers stay as they are, and known as the results of the operation that made them.
        return tensor if torch.equal(rounded, tensor.to(torch.float64)) else rounded


def _without_default_type(func: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments with float64 where a result without floating-point operands has the default type."""
    has_type = any(argument.name == "dtype" for argument in func._schema.arguments)
    integers = [*tensors_in((*args, *kwargs.values()))]
    if has_type and not integers and kwargs.get("dtype") is None:
        with _disable_current_modes():
            made = func(*args, **{**kwargs, "device": "meta"})
        return args, {**kwargs, "dtype": torch.float64} if _is_default(made) else kwargs
    if not (integers and torch.Tag.pointwise in func.tags):
        return args, kwargs
    with _disable_current_modes():
        made = func(*mapped(_without_elements, args), **mapped(_without_elements, kwargs))
    if not _is_default(made):
        return args, kwargs

    def wide(leaf: Any) -> Any:
        return leaf.to(torch.float64) if isinstance(leaf, torch.Tensor) else leaf

    return mapped(wide, args), mapped(wide, kwargs)


def _is_default(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.dtype is torch.get_default_dtype()


def _without_elements(leaf: Any) -> Any:
    return torch.empty((0,), dtype=leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf


def _narrowed(tree: Any) -> Any:
    def narrow(leaf: Any) -> Any:
        if leaf is torch.float64:
            return torch.float32
        is_wide = isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float64
        return leaf.to(torch.float32) if is_wide else leaf

    return mapped(narrow, tree)


@functools.cache
def _state(operation: str) -> None:
    """Log an operation that float64 has none of, once a process."""
    _LOG.warning("the oracle computes %s in float32: PyTorch has no other one", operation)
