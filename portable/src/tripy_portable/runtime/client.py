"""The runtime client: devices, streams, allocation, copies, DLPack.

A copy without a stream is complete when the call returns. A copy with a stream is queued, and complete when
the stream is. Its copy on the host is in pinned memory; do not read it earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tripy_portable.diagnostics import MTRTException
from tripy_portable.dtypes import BY_TORCH
from tripy_portable.runtime.memref import DeviceMemRef, HostMemRef, MemRefValue, make_ready
from tripy_portable.runtime.scripts import is_of_gpu
from tripy_portable.runtime.streams import Stream, create_stream, device_of, queue_of
from tripy_portable.runtime.types import ScalarTypeCode


class Device:
    """A device that nvtripy calls `gpu:<index>`."""

    def __init__(self, index: int):
        self.index = index

    def get_name(self) -> str:
        return f"portable:{self.index}"


class RuntimeClient:
    """Allocates and copies memory."""

    def __init__(self) -> None:
        self._devices = [Device(0)]

    def get_devices(self) -> list[Device]:
        """The devices, by index."""
        return self._devices

    def create_stream(self) -> Stream:
        """A new stream."""
        return create_stream(device_of(0))

    def create_memref(
        self,
        array: Any = None,
        /,
        *,
        shape: Sequence[int] | None = None,
        dtype: ScalarTypeCode | None = None,
        device: Device | None = None,
        stream: Stream | None = None,
    ) -> MemRefValue:
        """Allocates memory; with an array (any buffer), filled with a copy of its values.

        Args:
            array: a buffer whose elements have the size of `dtype`'s.
            shape: the shape; the array's length by default.
            dtype: the element type.
            device: the device; the host by default.
            stream: the stream of the copy to the device.

        Raises:
            MTRTException: the array's size does not fit the shape.
        """
        if dtype is None:
            raise MTRTException("InvalidArgument: create_memref needs the element type: pass dtype=")
        storage = dtype.element.torch
        if array is None:
            tensor = torch.zeros(tuple(shape or ()), dtype=storage)
        else:
            data = bytearray(memoryview(array).cast("B"))
            flat = torch.frombuffer(data, dtype=storage) if data else torch.empty(0, dtype=storage)
            dims = tuple(shape) if shape is not None else (flat.numel(),)
            if flat.numel() != _volume(dims):
                raise MTRTException(
                    f"InvalidArgument: array has {flat.numel()} elements, which doesn't fit shape "
                    f"{list(dims)}"
                )
            tensor = flat.reshape(dims)
        host = HostMemRef(tensor, dtype.element)
        return host if device is None else self._to_device(host, device, stream, is_owned=True)

    def _to_device(
        self, host: MemRefValue, device: Device, stream: Stream | None, is_owned: bool
    ) -> DeviceMemRef:
        target = device_of(device.index)
        queue = queue_of(stream, target)
        with torch.cuda.stream(queue):
            tensor = host.tensor.to(target, copy=not is_owned, non_blocking=stream is not None)
        return DeviceMemRef(tensor, host.element, queue=queue)

    def create_memref_view_from_dlpack(
        self, dltensor: Any = None, assert_canonical_strides: bool | None = None
    ) -> MemRefValue:
        """A memref that shares memory with a DLPack capsule.

        Raises:
            MTRTException: nvtripy lacks the element type, or the tensor is not row-major contiguous while
                canonical strides are asserted.
        """
        tensor = torch.utils.dlpack.from_dlpack(dltensor)
        element = BY_TORCH.get(tensor.dtype)
        if element is None:
            raise MTRTException(f"InvalidArgument: DLPack element type {tensor.dtype} is not supported")
        if tensor.is_cuda and tensor.device != device_of(0):
            raise MTRTException(
                f"InvalidArgument: DLPack tensor is on {tensor.device}, but only {device_of(0)} can be used: "
                "copy it there"
            )
        canonical = _canonical_strides(tensor.shape)
        if assert_canonical_strides and tensor.numel() > 0:
            differs = any(
                stride != expected
                for stride, expected, extent in zip(tensor.stride(), canonical, tensor.shape)
                if extent != 1
            )
            if differs:
                raise MTRTException(
                    f"InvalidArgument: Given strides [{_join(tensor.stride())}] do not match canonical "
                    "strides "
                    f"[{_join(canonical)}] for shape [{_join(tensor.shape)}]"
                )
        is_on_host = tensor.device.type == "cpu" and not is_of_gpu(dltensor)
        memref_type = HostMemRef if is_on_host else DeviceMemRef
        return memref_type(tensor, element, is_exposed=True)

    def copy_to_device(
        self, host_memref: MemRefValue, device: Device, stream: Stream | None = None
    ) -> MemRefValue:
        """A copy in device memory; the module's docstring explains streams."""
        return self._to_device(host_memref, device, stream, is_owned=False)

    def copy_to_host(
        self,
        device_memref: DeviceMemRef,
        existing_host_memref: MemRefValue | None = None,
        stream: Stream | None = None,
    ) -> MemRefValue | None:
        """A copy in host memory, new or existing; the module's docstring explains streams."""
        source, is_queued = device_memref.tensor, stream is not None and device_memref.tensor.is_cuda
        queue = queue_of(stream, source.device)
        shared = make_ready([device_memref], queue) if queue is not None else []
        target = None if existing_host_memref is None else existing_host_memref.tensor
        with torch.cuda.stream(queue):  # None keeps the current stream
            if target is None:
                target = torch.empty(source.shape, dtype=source.dtype, pin_memory=is_queued)
            target.copy_(source, non_blocking=is_queued)
        for other in shared:
            assert queue is not None, "only memory of a GPU is shared between streams"
            other.wait_stream(queue)
        return HostMemRef(target, device_memref.element) if existing_host_memref is None else None


def _volume(dims: Sequence[int]) -> int:
    volume = 1
    for extent in dims:
        volume *= extent
    return volume


def _canonical_strides(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return strides[::-1]


def _join(values: Sequence[int]) -> str:
    return ", ".join(str(value) for value in values)
