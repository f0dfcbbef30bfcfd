"""Casts around the modules of a Tripy model: each module runs in a precision of its own.

Tripy builds strongly typed networks, and only casts change a precision. The casts enter between modules while
the model is traced. The model's own code has none. A module gets its floating-point inputs and its parameters
in its precision. Its results are cast to its caller's precision, if the two differ. An operation between
modules runs in the precision of the module whose forward contains it. One precision for all modules adds no
cast.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import nvtripy as tp
import torch
from nvtripy.frontend.module.parameter import DefaultParameter

from parity.base.precision import PRECISIONS
from parity.base.precision_policy import CASTABLE, owner_of
from parity.base.trees import map_tree
from parity.capture.tripy_hooks import is_tripy_tensor, named_modules
from parity.runners.tripy.compiled import tripy_dtype
from parity.runners.tripy.pairing import load_tensors

DTYPES = {name: tripy_dtype(PRECISIONS[name].dtype) for name in CASTABLE}
FLOATING = frozenset(DTYPES.values())


def cast_tree(value: Any, dtype: tp.dtype) -> Any:
    """Nested tensors with the floating-point ones in `dtype`."""

    def cast(leaf: Any) -> Any:
        if is_tripy_tensor(leaf) and leaf.dtype in FLOATING and leaf.dtype != dtype:
            return tp.cast(leaf, dtype)
        return leaf

    return map_tree(value, cast)


def load_parameters(
    model: tp.Module, weights: Mapping[str, torch.Tensor], precisions: Mapping[str, str]
) -> None:
    """Set a model's parameters, each in the precision of its module.

    Args:
        model: A model without values of its parameters.
        weights: Float32 parameters by name.
        precisions: Precisions by path of the module; the empty path is the model.
    """
    declared = model.state_dict()
    tensors = {}
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            precision = precisions[owner_of(name, precisions)]
            tensor = tensor.to(PRECISIONS[precision].dtype)
            # A module checks a value against its declaration.
            _declare(model, name, declared[name], DTYPES[precision])
        tensors[name] = tensor.contiguous()
    load_tensors(model, tensors)


def _declare(model: tp.Module, name: str, tensor: Any, dtype: tp.dtype) -> None:
    """Give a tensor of a model another declared type: a tensor with values becomes another one."""
    if isinstance(tensor, DefaultParameter):
        tensor.dtype = dtype
    elif tensor.dtype != dtype:
        owner, _, own_name = name.rpartition(".")
        module = dict(named_modules(model))[owner] if owner else model
        # A module refuses an attribute of another type.
        vars(module)[own_name] = tp.zeros(tuple(map(int, tensor.shape)), dtype=dtype)


@contextlib.contextmanager
def casting(
    model: tp.Module, precisions: Mapping[str, str]
) -> Iterator[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Cast at the borders of all modules while the body traces the model.

    Yields a wrapper of functions that call the model's methods. It casts their arguments to the precision of
    the model itself. Their results stay in that precision.
    """
    dtypes = {path: DTYPES[name] for path, name in precisions.items()}
    running = [dtypes[""]]
    replaced: list[tuple[tp.Module, Any]] = []

    def wrap(module: tp.Module, dtype: tp.dtype) -> None:
        forward = module.forward

        def casting_forward(*args: Any, **kwargs: Any) -> Any:
            running.append(dtype)
            try:
                result = forward(*cast_tree(args, dtype), **cast_tree(kwargs, dtype))
            finally:
                running.pop()
            return result if dtype == running[-1] else cast_tree(result, running[-1])

        # Taps may have set this attribute already.
        replaced.append((module, vars(module).get("forward")))
        module.forward = casting_forward

    def at_entry(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: function(*cast_tree(args, dtypes[""]))

    try:
        for path, module in named_modules(model):
            wrap(module, dtypes[path])
        yield at_entry
    finally:
        for module, before in replaced:
            if before is None:
                del module.forward
            else:
                module.forward = before
