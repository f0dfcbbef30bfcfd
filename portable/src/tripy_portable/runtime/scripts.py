"""Switches for unmodified scripts: environment variables, read when nvtripy is imported.

`TRIPY_PORTABLE_NO_CALL_STACKS=1` records no call stacks. nvtripy keeps the Python stack of every operation
for its error messages, which takes most of the time of a trace. An error's own line stays in its message.
The lines of recorded operations do not.

`TRIPY_PORTABLE_CUDA_ON_CPU=1` makes PyTorch's device "cuda" the CPU on a machine without a GPU. nvtripy
takes such tensors for memory of the GPU. A warning says so at the first one. With a GPU, the variable has no
effect.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tripy_portable.runtime.options import is_on

NO_CALL_STACKS = "TRIPY_PORTABLE_NO_CALL_STACKS"
CUDA_ON_CPU = "TRIPY_PORTABLE_CUDA_ON_CPU"


def apply_switches() -> None:
    """Apply the switches to the process; that of the device to the calling thread.

    Raises:
        MTRTException: for a value other than 0 and 1, naming the variable.
    """
    if is_on(NO_CALL_STACKS):
        _record_no_call_stacks()
    if is_on(CUDA_ON_CPU) and not torch.cuda.is_available():
        CudaOnCpu().__enter__()
        torch.cuda.synchronize = lambda device=None: None  # type: ignore[assignment]
        torch.from_dlpack = torch.utils.dlpack.from_dlpack = functools.partial(  # type: ignore[assignment]
            _from_dlpack, torch.utils.dlpack.from_dlpack
        )


def _record_no_call_stacks() -> None:
    from nvtripy.utils import stack_info  # type: ignore[import-untyped]

    def frame(module: str, file: str, function: str) -> stack_info.SourceInfo:
        # With a range, even an empty one, nvtripy does not parse the code for columns.
        return stack_info.SourceInfo(module, file, 1, function, "", "", (0, 0))

    # nvtripy looks for the frame that converts arguments, and for its caller.
    frames = [
        frame("nvtripy.frontend.wrappers", "", "convert_input_types"),
        frame("tripy_portable", f"<{NO_CALL_STACKS}=1>", "recorded"),
    ]
    own = stack_info.get_stack_info

    def get_stack_info(include_code_index: int | None = None) -> stack_info.StackInfo:
        if sys._getframe(1).f_code.co_name == "raise_error":
            full = own(include_code_index)
            del full[0]  # the frame of this function
            return full
        return stack_info.StackInfo(frames)

    stack_info.get_stack_info = get_stack_info


class GpuTensor(torch.Tensor):
    """A tensor on the CPU that a script asked for on a GPU, like the results of operations on it."""


class CudaOnCpu(TorchFunctionMode):
    """Inside, PyTorch's functions compute on the CPU what they are asked for on "cuda"."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.__dlpack__:
            return _exported(func, args, kwargs)
        if func is torch.Tensor.cuda:
            return _moved(args[0], GpuTensor)
        if func is torch.Tensor.cpu:
            return _moved(args[0], torch.Tensor)
        asked = kwargs.get("device")
        if func is torch.Tensor.to:
            asked = next((value for value in (asked, *args[1:]) if _device_type(value)), None)
        kind = _device_type(asked)
        if kind == "cuda":
            kwargs = {name: _on_cpu(value) for name, value in kwargs.items()}
            args = [_on_cpu(value) for value in args]
        result = func(*args, **kwargs)
        if kind not in ("cuda", "cpu") or not isinstance(result, torch.Tensor):
            return result
        kind_of_result = GpuTensor if kind == "cuda" else torch.Tensor
        return (
            _moved(result, kind_of_result) if args and result is args[0] else _tagged(result, kind_of_result)
        )


def is_of_gpu(capsule: Any) -> bool:
    """Whether a DLPack capsule is the one that a `GpuTensor` exported last."""
    return capsule is _last_export[0]


_last_export: list[Any] = [object()]


def _exported(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        capsule = func(*args, **kwargs)
    if isinstance(args[0], GpuTensor):
        _last_export[0] = capsule
    return capsule


def _from_dlpack(function: Callable[..., torch.Tensor], source: Any, **keywords: Any) -> torch.Tensor:
    """PyTorch's function, which makes a `GpuTensor` of nvtripy's tensor on the GPU."""
    result = function(source, **keywords)
    is_on_gpu = getattr(getattr(source, "device", None), "kind", "") == "gpu"
    return _tagged(result, GpuTensor) if is_on_gpu else result


def _moved(tensor: torch.Tensor, kind: type[torch.Tensor]) -> torch.Tensor:
    """The tensor on another device: a copy, which shares no memory."""
    return tensor if isinstance(tensor, GpuTensor) == (kind is GpuTensor) else _tagged(tensor.clone(), kind)


def _tagged(tensor: torch.Tensor, kind: type[torch.Tensor]) -> torch.Tensor:
    if kind is GpuTensor:
        _say_once()
    return tensor.as_subclass(kind)


def _device_type(value: Any) -> str:
    """The type of a device as PyTorch's functions take it; empty for any other value."""
    if isinstance(value, str):
        value = value.partition(":")[0]
        return value if value in ("cuda", "cpu") else ""
    return value.type if isinstance(value, torch.device) else ""


def _on_cpu(value: Any) -> Any:
    return "cpu" if _device_type(value) == "cuda" else value


@functools.cache
def _say_once() -> None:
    warnings.warn(
        f"no GPU: the CPU computes for PyTorch's device cuda, because {CUDA_ON_CPU} is 1", stacklevel=5
    )
