"""Sessions: executables that run, with a plan for each set of input shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tripy_portable.diagnostics import MTRTException
from tripy_portable.ir.types import DYNAMIC, RankedTensorType, tensor_type
from tripy_portable.runtime.client import RuntimeClient
from tripy_portable.runtime.executable import Executable, plan_key
from tripy_portable.runtime.memref import DeviceMemRef, MemRefValue
from tripy_portable.runtime.streams import Stream, queue_of


class RuntimeSessionOptions:
    """The devices of a session."""

    def __init__(
        self, num_devices: int = 1, device_id: int = 0, nccl_uuid: str = "", features: list[str] | None = None
    ):
        if num_devices != 1:
            raise MTRTException(f"InvalidArgument: num_devices must be 1, but got {num_devices}")
        if device_id != 0:
            raise MTRTException(f"InvalidArgument: device_id must be 0, but got {device_id}")
        self.num_devices = num_devices
        self.device_id = device_id


class RuntimeSession:
    """Runs an executable.

    nvtripy 0.1.7 calls `RuntimeSession(options, executable)`; the newer interface is
    `RuntimeSession(client, options, executable)`.
    """

    def __init__(self, *args: Any):
        if len(args) == 3 and isinstance(args[0], RuntimeClient):
            args = args[1:]
        if len(args) != 2 or not isinstance(args[1], Executable):
            raise TypeError("RuntimeSession takes (options, executable) or (client, options, executable).")
        self.options, self.executable = args
        self._program = self.executable.program
        self._is_on_gpu = self.executable.device.type == "cuda"
        self._host_inputs = [i for i, spec in enumerate(self._program.specs) if spec.on_host]
        self._types = [self._program.types[v] for v in self._program.inputs]

    def execute_function(
        self,
        name: str,
        in_args: Sequence[MemRefValue],
        out_args: Sequence[MemRefValue] | None = None,
        stream: Stream | None = None,
        client: Any = None,
    ) -> list[MemRefValue]:
        """Runs `main` on memrefs and returns freshly allocated device memrefs.

        On a GPU the call queues its work in the stream (PyTorch's current one by default) and returns. The
        results are complete when the stream is done. Until then, only PyTorch may overwrite an argument that
        shares a tensor's memory: PyTorch's current stream waits for such calls.

        Raises:
            MTRTException: an argument's element type, rank, shape or value differs from the compiled one.
        """
        tensors = [memref.tensor for memref in in_args]
        key = plan_key(
            [tensor.shape for tensor in tensors],
            [memref.element for memref in in_args],
            [tensors[i].item() for i in self._host_inputs if i < len(tensors)],
        )
        plan = self.executable.plan(key)
        if plan is None:
            self._check(in_args)
            types = [tensor_type(tuple(memref.shape), memref.element) for memref in in_args]
            values = {i: tensors[i].cpu() for i in self._host_inputs}
            plan = self.executable.make_plan(key, types, values)
        if not self._is_on_gpu:
            results, queue = plan.run(tensors), None
        else:
            queue = queue_of(stream, self.executable.device)
            results = plan.run(in_args, queue)
        types = plan.result_types
        return [DeviceMemRef(tensor, type.element, queue=queue) for tensor, type in zip(results, types)]

    def _check(self, arguments: Sequence[MemRefValue]) -> None:
        if len(arguments) != len(self._types):
            raise MTRTException(
                f"InvalidArgument: function expects {len(self._types)} args but received {len(arguments)}"
            )
        for index, (memref, type) in enumerate(zip(arguments, self._types)):
            if memref.element is not type.element:
                raise MTRTException(
                    f"InvalidArgument: Input argument {index} validation failed against corresponding "
                    "function "
                    f"signature arg {index}. Reason: function expects a memref type with element type "
                    f"{type.element} but receives {memref.element}"
                )
        extents: dict[str, int] = {}
        for index, (memref, type, spec) in enumerate(zip(arguments, self._types, self._program.specs)):
            self._check_shape(index, memref, type)
            for dim, name in spec.dimension_names.items():
                expected = extents.setdefault(name, memref.shape[dim])
                if memref.shape[dim] != expected:
                    raise MTRTException(
                        f"InternalError: failed to set input shape: dimension {dim} of input {index} is "
                        "named "
                        f"'{name}' and has size {memref.shape[dim]}, but another dimension of that name has "
                        f"size {expected}"
                    )

    def _check_shape(self, index: int, memref: MemRefValue, type: RankedTensorType) -> None:
        spec = self._program.specs[index]
        shape = memref.shape
        matches = len(shape) == type.rank and all(d in (DYNAMIC, e) for e, d in zip(shape, type.dims))
        if matches and spec.shape_bounds is not None:
            bounds = spec.shape_bounds
            matches = all(low <= e <= high for low, e, high in zip(bounds.min, shape, bounds.max))
        if not matches:
            raise MTRTException(
                f"InvalidArgument: Input argument {index} validation failed: Runtime shape mismatch. "
                "Expected "
                f"{type} within {spec.shape_bounds} but received {shape}"
            )
        if spec.value_bounds is not None:
            value, bounds = int(memref.tensor.item()), spec.value_bounds
            if not bounds.min[0] <= value <= bounds.max[0]:
                raise MTRTException(
                    f"InvalidArgument: dimension input {index} has value {value}, which is not within the "
                    "bounds "
                    f"[{bounds.min[0]}, {bounds.max[0]}]"
                )
