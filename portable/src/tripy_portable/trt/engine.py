"""Runs a built engine on the GPU, with torch's CUDA tensors."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch

from tripy_portable.trt import library as libraries
from tripy_portable.trt.messages import Recorder
from tripy_portable.trt.network import INPUT_NAME, RESULT_NAME

_TORCH_DTYPES = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "FP8": torch.float8_e4m3fn,
    "INT64": torch.int64,
    "INT32": torch.int32,
    "INT8": torch.int8,
    "BOOL": torch.bool,
}


class CannotRun(RuntimeError):
    """The engine was built and cannot run here; the message says why."""


class Engine:
    """A deserialized engine with one execution context: one call at a time.

    Args:
        engine_bytes: a serialized engine of the library that is installed here.

    Raises:
        CannotRun: there is no CUDA device, or TensorRT does not run the engine on it.
        NoTensorRT: there is no TensorRT library.
    """

    def __init__(self, engine_bytes: bytes):
        library = libraries.load()
        if not torch.cuda.is_available():
            raise CannotRun("PyTorch sees no CUDA device")
        self._bind(library, engine_bytes, torch.device("cuda", torch.cuda.current_device()))

    def _bind(self, library: ModuleType, engine_bytes: bytes, device: torch.device) -> None:
        self._device = device
        self._recorder = Recorder(library)
        self._library = library
        self._runtime = library.Runtime(self._recorder.logger)
        self._engine = self._runtime.deserialize_cuda_engine(engine_bytes)
        if self._engine is None:
            raise CannotRun(f"{_name(device)}: {self._said('the engine cannot be deserialized')}")
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise CannotRun(f"{_name(device)}: {self._said('no execution context')}")
        modes = library.TensorIOMode
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        self._inputs = {name for name in names if self._engine.get_tensor_mode(name) == modes.INPUT}
        self._outputs = [RESULT_NAME.format(index) for index in range(len(names) - len(self._inputs))]

    def _said(self, otherwise: str) -> str:
        return next((m.text for m in self._recorder.messages if m.is_error), otherwise)

    def inspect(self) -> str:
        """TensorRT's own listing of the engine's layers, as JSON."""
        inspector = self._engine.create_engine_inspector()
        return inspector.get_engine_information(self._library.LayerInformationFormat.JSON)

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Launches the engine on torch's current stream, and does not wait for it.

        Args:
            inputs: contiguous tensors of the recorded dtypes, by position; dimension inputs may be on the
                host.

        Returns:
            Fresh tensors, by position.

        Raises:
            ValueError: the engine does not accept an input's dtype or shape.
            CannotRun: TensorRT fails to launch.
        """
        held = [self._give(index, tensor) for index, tensor in enumerate(inputs)]
        missing = self._context.infer_shapes()
        if missing:
            raise ValueError(f"the engine also needs {', '.join(missing)}; pass {len(self._inputs)} inputs")
        outputs = [self._receive(name) for name in self._outputs]
        stream = torch.cuda.current_stream(self._device).cuda_stream if self._device.type == "cuda" else 0
        if not self._context.execute_async_v3(stream):
            raise CannotRun(self._said("the launch failed"))
        # The allocator may reuse freed memory, but only after this launch on the same stream.
        del held
        return outputs

    def _give(self, index: int, tensor: torch.Tensor) -> torch.Tensor | None:
        name = INPUT_NAME.format(index)
        if name not in self._inputs:
            return None
        wanted = self._torch_dtype(name)
        if tensor.dtype != wanted:
            raise ValueError(f"input {index} has dtype {tensor.dtype}, the engine needs {wanted}; convert it")
        is_on_host = self._engine.get_tensor_location(name) == self._library.TensorLocation.HOST
        placed = tensor.to("cpu" if is_on_host else self._device).contiguous()
        if not self._context.set_input_shape(name, tuple(placed.shape)):
            bounds = "" if is_on_host else f", bounds {self._engine.get_tensor_profile_shape(name, 0)}"
            raise ValueError(
                f"input {index} has shape {tuple(placed.shape)}, which the engine does not take: its own is "
                f"{tuple(self._engine.get_tensor_shape(name))}{bounds}"
            )
        self._context.set_tensor_address(name, self._address(placed))
        return placed

    def _receive(self, name: str) -> torch.Tensor:
        shape = tuple(self._context.get_tensor_shape(name))
        is_on_host = self._engine.get_tensor_location(name) == self._library.TensorLocation.HOST
        device = "cpu" if is_on_host else self._device
        tensor = torch.empty(shape, dtype=self._torch_dtype(name), device=device)
        self._context.set_tensor_address(name, self._address(tensor))
        return tensor

    def _address(self, tensor: torch.Tensor) -> int:
        if tensor.numel():
            return tensor.data_ptr()
        # TensorRT takes no null pointer, not even for a tensor without elements.
        self._nothing = torch.empty(1, dtype=torch.uint8, device=tensor.device)
        return self._nothing.data_ptr()

    def _torch_dtype(self, name: str) -> torch.dtype:
        return _TORCH_DTYPES[self._engine.get_tensor_dtype(name).name]


def _name(device: torch.device) -> str:
    if device.type != "cuda":
        return str(device)
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} (compute capability {major}.{minor})"
