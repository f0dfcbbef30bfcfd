"""The runtime client: devices, streams, allocation, copies, DLPack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tripy_portable.diagnostics import MTRTException
from tripy_portable.dtypes import BY_TORCH
from tripy_portable.runtime.memref import DeviceMemRef, HostMemRef, MemRefValue
from tripy_portable.runtime.types import ScalarTypeCode


def device_of(index: int) -> torch.device:
    """Where device memory with this index lives."""
    return torch.device("cpu")


class Stream:
    """An ordered queue of work. On the CPU, work is done when a call returns."""

    @property
    def ptr(self) -> int:
        """A number that identifies the stream."""
        return id(self)

    def sync(self) -> None:
        """Waits for the work queued so far."""


class Device:
    """A device that nvtripy calls `gpu:<index>`."""

    def __init__(self, index: int):
        self.index = index
        self.stream = Stream()

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
        return Stream()

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

        Raises:
            MTRTException: where the array's size doesn't fit the shape.
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
        if device is not None:
            return DeviceMemRef(tensor.to(device_of(device.index)), dtype.element)
        return HostMemRef(tensor, dtype.element)

    def create_memref_view_from_dlpack(
        self, dltensor: Any = None, assert_canonical_strides: bool | None = None
    ) -> MemRefValue:
        """A memref that shares memory with a DLPack capsule.

        Raises:
            MTRTException: for an element type that nvtripy has not, and, where canonical strides are
                asserted, for a tensor that is not row-major contiguous.
        """
        tensor = torch.utils.dlpack.from_dlpack(dltensor)
        element = BY_TORCH.get(tensor.dtype)
        if element is None:
            raise MTRTException(f"InvalidArgument: DLPack element type {tensor.dtype} is not supported")
        canonical = _canonical_strides(tensor.shape)
        if assert_canonical_strides and tensor.numel() > 0:
            differs = any(
                given != expected
                for given, expected, extent in zip(tensor.stride(), canonical, tensor.shape)
                if extent != 1
            )
            if differs:
                raise MTRTException(
                    f"InvalidArgument: Given strides [{_join(tensor.stride())}] do not match canonical "
                    "strides "
                    f"[{_join(canonical)}] for shape [{_join(tensor.shape)}]"
                )
        memref_type = HostMemRef if tensor.device.type == "cpu" else DeviceMemRef
        return memref_type(tensor, element, is_exposed=True)

    def copy_to_device(
        self, host_memref: MemRefValue, device: Device, stream: Stream | None = None
    ) -> MemRefValue:
        """A copy in device memory."""
        return DeviceMemRef(host_memref.tensor.to(device_of(device.index), copy=True), host_memref.element)

    def copy_to_host(
        self,
        device_memref: MemRefValue,
        existing_host_memref: MemRefValue | None = None,
        stream: Stream | None = None,
    ) -> MemRefValue | None:
        """A copy in host memory: a new memref, or into an existing one."""
        if existing_host_memref is not None:
            existing_host_memref.tensor.copy_(device_memref.tensor)
            return None
        return HostMemRef(device_memref.tensor.to("cpu", copy=True), device_memref.element)


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
