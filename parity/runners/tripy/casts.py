"""Casts around the modules of a Tripy model: each one runs in a precision of its own.

Tripy builds strongly typed networks, in which precision is changed by casts. They are put where the modules
meet, while the model is traced, so that the model's own code knows of none. A module gets its floating-point
inputs in its precision, and its parameters are set in it. What it returns is cast to the precision of the
module that called it, where the two differ. Operations between modules thus run in the precision of the
module whose forward they are written in, and a model in one precision has no casts that it would not have by
itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import nvtripy as tp
import torch

from parity.base.precision import PRECISIONS
from parity.base.precision_policy import CASTABLE, owner_of
from parity.base.trees import map_tree
from parity.capture.tripy_hooks import is_tripy_tensor, named_modules
from parity.runners.tripy.compiled import tripy_dtype

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
    """Set a model's parameters, each in the precision of the module that it belongs to.

    Args:
        model: With parameters that have never been set.
        weights: In float32, by name.
        precisions: By path of the module, that of the model under the empty one.
    """
    declared = model.state_dict()
    tensors = {}
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            precision = precisions[owner_of(name, precisions)]
            tensor = tensor.to(PRECISIONS[precision].dtype)
            # A module checks a value against its declaration.
            declared[name].dtype = DTYPES[precision]
        tensors[name] = tp.Tensor(tensor.contiguous())
    model.load_state_dict(tensors, strict=True)


@contextlib.contextmanager
def casting(
    model: tp.Module, precisions: Mapping[str, str]
) -> Iterator[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Cast at the borders of all modules while the body traces the model.

    Yields a wrapper of functions that call the model's methods: their arguments are cast to the precision of
    the model itself. Their results stay in it.
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

        # Taps may have put an attribute in this place before.
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
