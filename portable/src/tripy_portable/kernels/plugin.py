"""Plugins: the implementation that `tensorrt.plugin.impl` has registered, called where the plan computes.

A tracer sees a plugin as one operation of PyTorch, `tripy_portable::plugin`, whose code is none of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import torch

from tripy_portable.diagnostics import UnsupportedOperation
from tripy_portable.dialect.inference import OpView
from tripy_portable.dialect.plugin_inference import definition_of
from tripy_portable.dtypes import DATA_TYPES
from tripy_portable.kernels.registry import Lowered, lowers
from tripy_portable.plugins.tensors import Tensor


@lowers("opaque_plugin")
def _opaque_plugin(view: OpView) -> Lowered:
    """Writes to a new tensor; inputs are contiguous, as TensorRT's linear format is."""
    definition = definition_of(view.attrs)
    implementation = definition.impl_func
    if implementation is None:
        raise UnsupportedOperation(
            f"plugin '{definition.plugin_id}' has no implementation that the portable runtime could call; "
            "register one with `tensorrt.plugin.impl`"
        )
    values = dict(view.attrs["attributes"])
    arguments = [values[name] for name in definition.impl_attr_names]
    kinds = [DATA_TYPES[view.type(index).element] for index in range(len(view.types))]
    (result,) = view.declared
    result_kind = DATA_TYPES[result.element]

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        device = inputs[0].device
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        output = torch.empty(result.dims, dtype=result.element.torch, device=device)
        tensors = [Tensor(tensor.contiguous(), kind) for tensor, kind in zip(inputs, kinds)]
        implementation(*tensors, *arguments, (Tensor(output, result_kind),), stream=stream)
        return output

    return Lowered(PluginCall(run, result.dims, result.element.torch))


class PluginCall:
    """A call of a plugin in a plan: from its inputs to a new tensor.

    Args:
        run: calls the implementation.
        shape: shape of the result.
        dtype: type of the result.
    """

    def __init__(self, run: Callable[..., torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype):
        self.run, self.shape, self.dtype = run, shape, dtype
        self._number = next(_numbers)
        _calls[self._number] = self

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        if _is_traced.get():
            return torch.ops.tripy_portable.plugin(list(inputs), self._number)
        return self.run(*inputs)


@contextlib.contextmanager
def plugins_as_operations() -> Iterator[None]:
    """Inside, plans call plugins as operations of PyTorch, for a tracer.

    What the tracer makes calls the plan's own plugins: it works as long as the plan lives.
    """
    before = _is_traced.set(True)
    try:
        yield
    finally:
        _is_traced.reset(before)


_is_traced: ContextVar[bool] = ContextVar("is_traced", default=False)
_numbers = itertools.count()
_calls: weakref.WeakValueDictionary[int, PluginCall] = weakref.WeakValueDictionary()
_library = torch.library.Library("tripy_portable", "DEF")
_library.define("plugin(Tensor[] inputs, int number) -> Tensor")


@torch.library.impl(_library, "plugin", "CompositeExplicitAutograd")
def _run(inputs: list[torch.Tensor], number: int) -> torch.Tensor:
    return _calls[number].run(*inputs)


@torch.library.register_fake("tripy_portable::plugin", lib=_library)
def _result(inputs: list[torch.Tensor], number: int) -> torch.Tensor:
    call = _calls[number]
    return torch.empty(call.shape, dtype=call.dtype, device=inputs[0].device)
