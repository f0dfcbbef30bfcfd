"""Memory: nvtripy's host and device tensors.

Without a GPU, "device" memory is host memory with a device flag. With one, device memory records the CUDA
stream that writes it and the streams that use it; see `streams`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from tripy_portable.dtypes import ElementType
from tripy_portable.runtime.streams import consumers, torch_queues
from tripy_portable.runtime.types import PointerType, ScalarTypeCode


class MemRefValue:
    """A contiguous tensor in host or device memory."""

    __slots__ = ()
    _tensor: torch.Tensor
    _element: ElementType
    _is_exposed: bool
    address_space: PointerType

    @property
    def tensor(self) -> torch.Tensor:
        """The data."""
        return self._tensor

    @property
    def shape(self) -> list[int]:
        return list(self._tensor.shape)

    @property
    def strides(self) -> list[int]:
        """In elements."""
        return list(self._tensor.stride())

    @property
    def dtype(self) -> ScalarTypeCode:
        return ScalarTypeCode.of(self._element)

    @property
    def element(self) -> ElementType:
        """The element type."""
        return self._element

    @property
    def ptr(self) -> int:
        """The address of the first element."""
        return self._tensor.data_ptr()

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        self._is_exposed = True  # type: ignore[misc]  # subclasses have it, in a slot or a dictionary
        return torch.utils.dlpack.to_dlpack(self._tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self._tensor.__dlpack_device__()
        return int(kind), int(index)

    @property
    def is_exposed(self) -> bool:
        """Whether someone else, through DLPack, can write to the memory."""
        return self._is_exposed

    def frozen_tensor(self) -> torch.Tensor:
        """The data as a constant: copied where someone else could still write to it."""
        return self._tensor.clone() if self._is_exposed else self._tensor

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"MemRefValue({self.shape}, {self.dtype.name}, {self.address_space.name})"


class DeviceMemRef(MemRefValue):
    """Device memory. It exports no buffer: copy it to the host first."""

    __slots__ = ("_element", "_is_exposed", "_tensor", "users")
    address_space = PointerType.device

    def __init__(
        self,
        tensor: torch.Tensor,
        element: ElementType,
        is_exposed: bool = False,
        queue: torch.cuda.Stream | None = None,
    ):
        """Device memory that holds a tensor.

        Args:
            tensor: the data.
            element: the element type.
            is_exposed: whether someone else can write to the memory.
            queue: the CUDA stream in which the data is written; PyTorch's current one by default.
        """
        self._tensor = tensor
        self._element = element
        self._is_exposed = is_exposed
        # The CUDA streams for which the data is ready, the one that writes it first. None on the CPU.
        self.users: tuple[torch.cuda.Stream, ...] = ()
        if tensor.is_cuda:
            self.users = (queue if queue is not None else torch.cuda.current_stream(tensor.device),)

    def make_ready(self, queue: torch.cuda.Stream) -> None:
        """Make a stream wait for the data, and keep the memory until the stream is done."""
        queue.wait_stream(self.users[0])
        self._tensor.record_stream(queue)
        self.users += (queue,)

    def __dlpack__(self, stream: int | None = None, **_: Any) -> Any:
        if self._tensor.is_cuda:
            for consumer in consumers(stream, self._tensor.device):
                consumer.wait_stream(self.users[0])
                self._tensor.record_stream(consumer)
        return super().__dlpack__()


def make_ready(memrefs: Iterable[DeviceMemRef], queue: torch.cuda.Stream) -> list[torch.cuda.Stream]:
    """Make a stream wait for the writes to the memory that it reads.

    Returns:
        The streams that must wait for this one in turn, because they share some of the memory. PyTorch may
        write to it, or free it, as soon as the call returns.
    """
    shared: list[torch.cuda.Stream] = []
    for memref in memrefs:
        if queue not in memref.users:
            memref.make_ready(queue)
        if memref.is_exposed and not shared:
            shared = [other for other in torch_queues(memref.tensor.device) if other != queue]
    for other in shared:
        queue.wait_stream(other)
    return shared


class HostMemRef(MemRefValue, np.ndarray):  # type: ignore[misc]  # the memref's names win, on purpose
    """Host memory.

    Before Python 3.12 only a type written in C can export the buffer protocol, which nvtripy uses
    (`memoryview(memref)`); being an ndarray over the tensor's memory does that.
    """

    address_space = PointerType.host

    def __new__(cls, tensor: torch.Tensor, element: ElementType, is_exposed: bool = False) -> HostMemRef:
        memref = _as_array(tensor).view(cls)
        memref.flags.writeable = False
        memref._tensor = tensor
        memref._element = element
        memref._is_exposed = is_exposed
        return memref

    def __bool__(self) -> bool:
        return True

    __str__ = MemRefValue.__repr__
    __repr__ = MemRefValue.__repr__
    __eq__ = MemRefValue.__eq__
    __ne__ = MemRefValue.__ne__
    __hash__ = MemRefValue.__hash__  # type: ignore[assignment]  # arrays have none


_BITS = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8}


def _as_array(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory; types that NumPy lacks appear as their bits."""
    stand_in = _BITS.get(tensor.dtype)
    return (tensor.view(stand_in) if stand_in is not None else tensor).numpy()
