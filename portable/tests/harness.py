"""Builds one small graph with the dialect's builders, compiles it and runs it: the whole path but nvtripy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mlir_tensorrt.compiler import ir
from mlir_tensorrt.compiler.api import CompilerClient, translate_mlir_to_executable
from mlir_tensorrt.compiler.dialects import func, tensorrt
from mlir_tensorrt.runtime.api import RuntimeClient, RuntimeSession, RuntimeSessionOptions
from tripy_portable.dtypes import BY_TORCH, ElementType
from tripy_portable.ir.operations import Value
from tripy_portable.ir.types import DYNAMIC, RankedTensorType, tensor_type
from tripy_portable.runtime.memref import DeviceMemRef
from tripy_portable.runtime.streams import device_of

Build = Callable[..., Any]


def as_tensor(array: Any) -> torch.Tensor:
    """A tensor of an array or tensor."""
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(np.array(array))


def compile_graph(
    build: Build, types: Sequence[RankedTensorType], profiles: Sequence[tuple[Any, Any, Any]] | None = None
) -> Any:
    """An executable of what `build` returns for arguments of the given types.

    `profiles` gives each argument's least, typical and greatest shape.
    """
    with ir.Context() as context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            function = func.FuncOp("main", ir.FunctionType.get(list(types), []))
            block = function.add_entry_block()
            with ir.InsertionPoint(block):
                results = build(*block.arguments)
                func.ReturnOp(list(results) if isinstance(results, (list, tuple)) else [results])
        function.arg_attrs = ir.ArrayAttr.get([_attributes(profiles, i) for i in range(len(types))])
        task = CompilerClient(context).get_compilation_task("tensorrt-to-executable", [])
        task.run(module.operation)
        return translate_mlir_to_executable(module.operation)


def _attributes(profiles: Sequence[Any] | None, index: int) -> ir.DictAttr:
    if profiles is None:
        return ir.DictAttr.get({})
    least, typical, greatest = (list(shape) for shape in profiles[index])
    text = f"#tensorrt.shape_profile<min={least}, opt={typical}, max={greatest}>"
    return ir.DictAttr.get({"tensorrt.shape_profile": ir.Attribute.parse(text)})


def session(executable: Any) -> RuntimeSession:
    """A session of an executable."""
    return RuntimeSession(RuntimeSessionOptions(num_devices=1, device_id=0), executable)


def memrefs(
    tensors: Sequence[torch.Tensor], elements: Sequence[ElementType] | None = None
) -> list[DeviceMemRef]:
    """Device memrefs of tensors."""
    elements = elements if elements is not None else [BY_TORCH[t.dtype] for t in tensors]
    return [DeviceMemRef(t.to(device_of(0)), element) for t, element in zip(tensors, elements)]


def run(build: Build, *arrays: Any) -> Any:
    """Results, as tensors, of a graph compiled for the arrays' own static shapes and again for dynamic ones.

    Both must agree bit for bit; a single result is returned bare.
    """
    tensors = [as_tensor(array) for array in arrays]
    static = [tensor_type(tuple(t.shape), BY_TORCH[t.dtype]) for t in tensors]
    results = execute(compile_graph(build, static), tensors)
    dynamic = [tensor_type((DYNAMIC,) * t.ndim, BY_TORCH[t.dtype]) for t in tensors]
    profiles = [(tuple(0 for _ in t.shape), tuple(t.shape), tuple(t.shape)) for t in tensors]
    again = execute(compile_graph(build, dynamic, profiles), tensors)
    for first, second in zip(results, again, strict=True):
        assert first.dtype == second.dtype
        assert first.shape == second.shape
        assert torch.equal(_bits(first), _bits(second))
    return results[0] if len(results) == 1 else results


def execute(executable: Any, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Results of an executable, in host memory."""
    outputs = session(executable).execute_function("main", memrefs(tensors), client=RuntimeClient())
    return [output.tensor.cpu() for output in outputs]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat.to(torch.uint8)


def constant(values: Any, dtype: torch.dtype = torch.int32) -> Value:
    """A constant in the graph that is being built."""
    from mlir_tensorrt.runtime.api import RuntimeClient, ScalarTypeCode

    tensor = torch.tensor(values, dtype=dtype)
    element = BY_TORCH[dtype]
    memref = RuntimeClient().create_memref(
        tensor.contiguous().reshape(-1).view(torch.uint8).numpy(),
        shape=list(tensor.shape),
        dtype=ScalarTypeCode.of(element),
    )
    return tensorrt.constant(
        ir.DenseElementsAttr.get(array=memref, type=ir_type(element), shape=list(tensor.shape))
    )


def ir_type(element: ElementType) -> Any:
    """The MLIR type of an element type."""
    from tripy_portable.ir.types import element_type

    return element_type(element)


def ranked(rank: int, dtype: torch.dtype) -> RankedTensorType:
    """A tensor type with all dimensions unknown, as nvtripy declares results."""
    return tensor_type((DYNAMIC,) * rank, BY_TORCH[dtype])


def float64(tensor: Any) -> np.ndarray:
    """Values in float64."""
    return as_tensor(tensor).to(torch.float64).numpy()


def assert_within_ulps(actual: torch.Tensor, exact: np.ndarray, ulps: float) -> None:
    """Each element within `ulps` units in the last place of its type; NaN matches NaN."""
    info = torch.finfo(actual.dtype)
    values, exact = float64(actual), np.asarray(exact)
    assert values.shape == exact.shape
    rounded = torch.from_numpy(exact).to(actual.dtype).to(torch.float64).numpy()
    special = ~np.isfinite(rounded)
    np.testing.assert_array_equal(values[special], rounded[special])
    magnitude = np.maximum(np.abs(exact), float(info.smallest_normal))
    with np.errstate(divide="ignore"):
        unit = np.exp2(np.floor(np.log2(magnitude))) * info.eps
    difference = np.abs(values - exact)[~special]
    assert (difference <= ulps * unit[~special]).all(), (difference / unit[~special]).max()
