"""The operation of the reference whose numbers a type cannot hold: the usual cause of a port's NaN or Inf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from parity.base.dispatch import tensors_in
from parity.verdict.causes.operations import Operation
from parity.verdict.causes.runs import Program, origin
from parity.verdict.patterns import FailedTensor


def overflow(program: Program, failed: FailedTensor, dtype: torch.dtype) -> str:
    """The first operation with numbers beyond the largest one of a type, in words; empty without one.

    A port may have such numbers where PyTorch has none: PyTorch adds half numbers in float32, and its softmax
    subtracts the largest element first. An overflow leaves NaN, Inf, or 0 where Inf is a divisor.

    Args:
        program: The reference's code with the arguments of the call.
        failed: The port's result. Other wrong elements are no effect of an overflow.
        dtype: The tested type, of floating point.
    """
    wrong = failed.port[failed.wrong]
    if not wrong.size or (np.isfinite(wrong) & (wrong != 0.0)).any():
        return ""
    watch = _Watch(torch.finfo(dtype).max, program.is_changeable)
    program.run_under(watch)
    if not watch.found:
        return ""
    name = str(dtype).removeprefix("torch.")
    return f"{watch.found} in the oracle, and {name} ends at {torch.finfo(dtype).max:.3g}"


class _Watch(TorchDispatchMode):
    """Finds the first operation of a run whose numbers are above a limit."""

    def __init__(self, limit: float, is_changeable: Callable[[], bool]) -> None:
        super().__init__()
        self._limit = limit
        self._is_changeable = is_changeable
        self.found = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        result = func(*args, **kwargs)
        if not self.found and self._is_changeable():
            operation = Operation(func, args, kwargs)
            for words, numbers in _numbers(operation, result):
                size = _largest(numbers)
                if size > self._limit:
                    self.found = f"{words} in {origin(2).words} is up to {size:.3g}"
                    break
        return result


def _numbers(operation: Operation, result: Any) -> Iterator[tuple[str, Any]]:
    """What an operation, or another form of it, computes on the way, and its result, each with its words."""
    if operation.name in _INSIDE:
        words, numbers = _INSIDE[operation.name]
        yield f"the {words} of {operation.words}", numbers(operation.named())
    yield operation.words, result


def _largest(numbers: Any) -> float:
    """The largest finite size; infinite numbers are those of a mask."""
    sizes = [own[torch.isfinite(own)].abs() for own in tensors_in([numbers]) if own.dtype.is_floating_point]
    return max((float(own.max()) for own in sizes if own.numel()), default=0.0)


def _squares(named: dict[str, Any]) -> torch.Tensor:
    """Sums of squares over the axes of a norm or a variance."""
    return named["self"].square().sum(named.get("dim") or None)


def _squares_of_layer(named: dict[str, Any]) -> torch.Tensor:
    return named["input"].square().sum(tuple(range(-len(named["normalized_shape"]), 0)))


def _squares_of_groups(named: dict[str, Any]) -> torch.Tensor:
    return named["input"].reshape(named["N"], named["group"], -1).square().sum(-1)


def _sum(named: dict[str, Any]) -> torch.Tensor:
    return named["self"].sum(named.get("dim") or None)


def _exponentials(named: dict[str, Any]) -> torch.Tensor:
    # float64 ends at exp(709).
    return named["self"].clamp(max=700.0).exp()


_INSIDE: dict[str, tuple[str, Callable[[dict[str, Any]], torch.Tensor]]] = {
    **dict.fromkeys(
        ("linalg_vector_norm", "norm", "var", "var_mean", "std", "std_mean"), ("sum of squares", _squares)
    ),
    "native_layer_norm": ("sum of squares", _squares_of_layer),
    "native_group_norm": ("sum of squares", _squares_of_groups),
    "mean": ("sum", _sum),
    **dict.fromkeys(("_softmax", "_log_softmax", "logsumexp", "softplus"), ("exponential", _exponentials)),
}
"""Operations with larger numbers on the way than in their result."""
