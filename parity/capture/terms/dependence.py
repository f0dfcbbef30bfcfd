"""The number of terms of an operation that is not known, measured by running it.

The number of terms is the largest number of one operand's elements that one result element depends on: 1 for
an elementwise operation, K for a product over K, the window of a convolution, the whole length of a
cumulative sum. The operation runs on random numbers of the operands' shapes. Integer operands are the
operation's own, since they may be places.

Where PyTorch has a derivative, the elements with a derivative other than 0 are counted, for the first, the
middle and the last result element.

Without one, an element of an operand becomes NaN, and all results that depend on it change, whatever the
other operands are. Pairs of an operand's element and a dependent result are counted from the operand's side.
If all P elements of the operand change c of R results each, there are P * c pairs, and P * c / R elements for
one result. The first, the middle and the last element of each operand change in turn, and the largest count
holds. An operation that refuses NaN has a large finite change instead.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from parity.base.interruption import raisable

_AUTOGRAD = torch._C.DispatchKey.Autograd
_measured: dict[Any, int | str] = {}
"""Counts by operation and shapes, or reasons for a missing count."""


class NotMeasurable(Exception):
    """An operation cannot be measured; the message is the reason for the report."""


def written(func: Any, args: tuple, kwargs: dict, result: Any) -> list[torch.Tensor]:
    """The floating-point and complex results of an operation, and such arguments that it writes into."""
    tensors = [] if result is None else pytree.tree_leaves(result)
    if func._schema.is_mutable and not tensors:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                tensors += pytree.tree_leaves(args[place] if place < len(args) else kwargs.get(argument.name))
    return [tensor for tensor in tensors if _is_wide(tensor)]


def measured_terms(func: Any, args: tuple, kwargs: dict) -> int:
    """The terms of an operation, at least 1.

    Args:
        func: The `OpOverload`.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Raises:
        NotMeasurable: The operation draws random numbers, or has or accepts no random operand.
    """
    leaves, structure = pytree.tree_flatten((args, kwargs))
    key = (func, str(structure), tuple(_signature(leaf) for leaf in leaves))
    if key not in _measured:
        # A thread of its own has neither a dispatch mode nor inference mode, which forbid derivatives.
        thread = threading.Thread(target=_store, args=(key, func, leaves, structure))
        thread.start()
        thread.join()
    count = _measured[key]
    if isinstance(count, str):
        raise NotMeasurable(count)
    return count


def _signature(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else repr(leaf)


def _store(key: Any, func: Any, leaves: list, structure: Any) -> None:
    try:
        _measured[key] = _Trial(func, leaves, structure).terms()
    except NotMeasurable as reason:
        _measured[key] = str(reason)
    except raisable() as error:
        # The advice after the first sentence is for the caller of the operation.
        first = str(error).strip().partition("\n")[0].partition(". ")[0] or "no message"
        _measured[key] = f"it refuses random operands ({type(error).__name__}: {first})"


class _Trial:
    """Runs of one operation on random operands."""

    def __init__(self, func: Any, leaves: list, structure: Any) -> None:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise NotMeasurable("it draws random numbers")
        self._func = func
        self._structure = structure
        generator = torch.Generator().manual_seed(0)
        self._operands = [_random(leaf, generator) if _is_wide(leaf) else _copy(leaf) for leaf in leaves]
        self._places = [place for place, leaf in enumerate(self._operands) if _is_wide(leaf) and leaf.numel()]
        if not self._places:
            raise NotMeasurable("it has no floating-point operand")

    def terms(self) -> int:
        # An operation outside of PyTorch may run without a derivative of its own and have a wrong one then.
        if torch._C._dispatch_has_kernel_for_dispatch_key(self._func.name(), _AUTOGRAD):
            with contextlib.suppress(RuntimeError):  # no derivative
                return self._by_derivatives()
        try:
            return self._by_changes(math.nan)
        except RuntimeError:
            return self._by_changes(1e3)

    def _run(self, operands: list) -> list[torch.Tensor]:
        args, kwargs = pytree.tree_unflatten(operands, self._structure)
        results = written(self._func, args, kwargs, self._func(*args, **kwargs))
        return [result for result in results if result.numel()]

    def _by_derivatives(self) -> int:
        """The largest number of an operand's elements with a derivative. Raises RuntimeError without any."""
        parameters = {place: self._operands[place].clone().requires_grad_() for place in self._places}
        # A copy: a leaf that needs a derivative cannot be written into.
        operands = [
            parameters[place].clone() if place in parameters else _copy(leaf)
            for place, leaf in enumerate(self._operands)
        ]
        largest = 1
        for result in self._run(operands):
            numbers = _numbers(result)
            for element in _elements(result.shape):
                gradients = torch.autograd.grad(
                    numbers[element].sum(), list(parameters.values()), retain_graph=True, allow_unused=True
                )
                counts = [int(gradient.count_nonzero()) for gradient in gradients if gradient is not None]
                largest = max([largest, *counts])
        return largest

    def _by_changes(self, value: float) -> int:
        """The largest number of an operand's elements for one result, from changes of single elements."""
        before = self._run([_copy(leaf) for leaf in self._operands])
        largest = 1
        for place in self._places:
            operand = self._operands[place]
            for element in _elements(operand.shape):
                changed = operand.reshape(-1).clone()
                changed[element] = value
                operands = [_copy(leaf) for leaf in self._operands]
                operands[place] = changed.reshape(operand.shape)
                for one, other in zip(before, self._run(operands), strict=True):
                    if one.shape != other.shape:
                        raise NotMeasurable("the shape of its result depends on values")
                    count = _differing(_numbers(one), _numbers(other))
                    largest = max(largest, math.ceil(operand.numel() * count / one.numel()))
        return largest


def _copy(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _elements(shape: Sequence[int]) -> set[int]:
    """Places of the first element, of the one in the middle of every axis, and of the last one."""
    middle = 0
    for size in shape:
        middle = middle * size + size // 2
    return {0, middle, math.prod(shape) - 1}


def _differing(one: torch.Tensor, other: torch.Tensor) -> int:
    return int(((one != other) & ~(one.isnan() & other.isnan())).any(dim=-1).sum())


def _is_wide(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and (leaf.dtype.is_floating_point or leaf.dtype.is_complex)


def _random(leaf: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers between 0.5 and 1.5: no function has a pole there, and none cancels."""
    numbers = torch.rand(leaf.shape, generator=generator, dtype=torch.float32) + 0.5
    return numbers.to(device=leaf.device, dtype=leaf.dtype)


def _numbers(output: torch.Tensor) -> torch.Tensor:
    """(R, 1) numbers of a result, or (R, 2) of a complex one."""
    parts = torch.view_as_real(output) if output.dtype.is_complex else output.unsqueeze(-1)
    return parts.reshape(output.numel(), -1)
