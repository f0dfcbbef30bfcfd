"""Plugins: the implementation that `tensorrt.plugin.impl` has registered, called where the plan computes."""

from __future__ import annotations

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

    return Lowered(run)
