"""Streams, and the place of device memory: on the GPU that PyTorch finds, else in host memory.

Work without a stream goes to PyTorch's current one. A stream that reads another one's results waits on the
GPU; the host does not wait.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any

import torch


@functools.cache
def device_of(index: int) -> torch.device:
    """Where device memory with this index lives.

    Index 0 is PyTorch's current GPU at the first call, so that each of several processes may have its own.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", (torch.cuda.current_device() + index) % torch.cuda.device_count())


class Stream:
    """An ordered queue of work: a CUDA stream. On the CPU, work is done when a call returns."""

    def __init__(self, cuda: torch.cuda.Stream | None = None):
        self.cuda = cuda

    @property
    def ptr(self) -> int:
        """The CUDA stream's handle; on the CPU, a number that identifies the stream."""
        return self.cuda.cuda_stream if self.cuda is not None else id(self)

    def sync(self) -> None:
        """Waits for the queued work, and raises its errors."""
        if self.cuda is not None:
            self.cuda.synchronize()


def create_stream(device: torch.device) -> Stream:
    """A new stream, which runs beside the others (PyTorch hands out up to 32 different ones)."""
    return Stream(torch.cuda.Stream(device) if device.type == "cuda" else None)


def queue_of(stream: Stream | None, device: torch.device) -> torch.cuda.Stream | None:
    """The CUDA stream that work goes to; None on the CPU."""
    if device.type != "cuda":
        return None
    if stream is not None and stream.cuda is not None:
        return stream.cuda
    return torch.cuda.current_stream(device)


class _Current:
    """A context in which a stream of the current device is PyTorch's current one."""

    __slots__ = ("_before", "_queue")

    def __init__(self, queue: torch.cuda.Stream):
        self._queue = queue

    def __enter__(self) -> None:
        queue = self._queue
        self._before = torch._C._cuda_getCurrentStream(queue.device_index)
        torch._C._cuda_setStream(
            stream_id=queue.stream_id, device_index=queue.device_index, device_type=queue.device_type
        )

    def __exit__(self, *_: object) -> None:
        stream_id, device_index, device_type = self._before
        torch._C._cuda_setStream(stream_id=stream_id, device_index=device_index, device_type=device_type)


def current(queue: torch.cuda.Stream) -> AbstractContextManager[Any]:
    """`torch.cuda.stream`, without the parts of it in Python where the device stays the same."""
    if torch.cuda.current_device() == queue.device_index:
        return _Current(queue)
    return torch.cuda.stream(queue)


def torch_queues(device: torch.device) -> list[torch.cuda.Stream]:
    """The streams in which PyTorch, and libraries that know no streams, work with shared memory."""
    default, current = torch.cuda.default_stream(device), torch.cuda.current_stream(device)
    return [default] if current == default else [default, current]


def consumers(stream: int | None, device: torch.device) -> list[torch.cuda.Stream]:
    """The streams that a DLPack consumer may use, by the protocol's `stream` argument.

    None means the legacy default stream; PyTorch's current one is added, because nvtripy drops the argument
    that PyTorch passes.

    Raises:
        BufferError: stream 0, which the protocol forbids.
    """
    if stream is None:
        return torch_queues(device)
    if stream == -1:
        return []
    if stream == 0:
        raise BufferError("DLPack's stream 0 is ambiguous: use 1 for the legacy default stream, -1 for none")
    if stream == 1:
        return [torch.cuda.default_stream(device)]
    return [torch.cuda.ExternalStream(stream, device)]
