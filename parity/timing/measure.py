"""Timing single runs: between CUDA events where the work is a GPU's, by the host's clock elsewhere.

The time between two events in the work's own stream is what a caller waits for: gaps in which the GPU waits
for the host to launch the next kernel count. A replay of the same work as a captured graph has none between
its kernels, and none in front of them, since it is queued while the GPU is busy with something else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from parity.base.trees import leaves

CAPTURE_WARM_UPS = 3
# How long a GPU is kept busy, at first and at most, for the host to queue a run: 0.13 ms and 0.13 s at 2 GHz.
BUSY_CYCLES, MOST_BUSY_CYCLES = 250_000, 256_000_000


@dataclass(frozen=True)
class Timed:
    """Seconds of each run, and what the last one returned."""

    seconds: list[float]
    result: Any = None


@dataclass(frozen=True)
class Replayed:
    """Seconds of each replay; where there can be none, the reason."""

    seconds: list[float]
    reason: str = ""


class NotCapturable(Exception):
    """Work that cannot be replayed as a graph; the message says why."""


def measure(function: Callable[[], Any], repeats: int, queue: torch.cuda.Stream | None) -> Timed:
    """Time runs one by one, each begun when the one before is done.

    Args:
        function: What to time. On a GPU it need not wait for its own work.
        repeats: How many runs.
        queue: The CUDA stream that the work goes to; None where `function` does all of it before it returns.
    """
    seconds, result = [], None
    for _ in range(repeats):
        if queue is None:
            begun = time.perf_counter()
            result = function()
            seconds.append(time.perf_counter() - begun)
            continue
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record(queue)
        result = function()
        end.record(queue)
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return Timed(seconds, result)


def measure_queued(function: Callable[[], Any], repeats: int, queue: torch.cuda.Stream) -> Timed:
    """Time runs one by one, each as long as it takes the GPU alone.

    The GPU is kept busy until a run is queued to its end. Whether it was, the GPU says: it must not have come
    to the first event yet. Where it has, the run is measured anew behind twice the work.

    Args:
        function: What to time: few launches, and no waiting for the GPU.
        repeats: How many runs.
        queue: The CUDA stream that the work goes to.

    Raises:
        NotCapturable: It waits for the GPU, or takes the host too long.
    """
    seconds: list[float] = []
    result, cycles = None, BUSY_CYCLES
    while len(seconds) < repeats:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        with torch.cuda.stream(queue):
            torch.cuda._sleep(cycles)
        start.record(queue)
        result = function()
        end.record(queue)
        was_queued = not start.query()
        torch.cuda.synchronize()
        if was_queued:
            seconds.append(start.elapsed_time(end) / 1e3)
        elif cycles < MOST_BUSY_CYCLES:
            cycles *= 2
        else:
            raise NotCapturable("it waits for the GPU, or the host takes too long to queue it")
    return Timed(seconds, result)


class Replay:
    """A function's work on the GPU as a captured graph, its results compared with those of a plain run."""

    def __init__(self, function: Callable[[], Any]) -> None:
        """Capture `function`, which works in PyTorch's current stream on tensors that stay where they are.

        Raises:
            NotCapturable: It waits for the GPU, or a replay gives other bits.
        """
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(CAPTURE_WARM_UPS):
                expected = [leaf.clone() for leaf in _tensors(function())]
        torch.cuda.synchronize()
        # Found before a capture that it would break.
        torch.cuda.set_sync_debug_mode("error")
        try:
            function()
        except RuntimeError as error:
            raise NotCapturable(f"it waits for the GPU ({_first_line(error)})") from error
        finally:
            torch.cuda.set_sync_debug_mode("default")
        self._graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self._graph):
                result = function()
        except RuntimeError as error:
            raise NotCapturable(f"it cannot be captured ({_first_line(error)})") from error
        self._graph.replay()
        torch.cuda.synchronize()
        if not all(map(same_bits, _tensors(result), expected)):
            raise NotCapturable("a replay gives other bits than a run")

    def time(self, repeats: int) -> list[float]:
        """Seconds of single replays, without the host's."""
        return measure_queued(self._graph.replay, repeats, torch.cuda.current_stream()).seconds


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same bit for bit, a NaN equal to itself."""
    raw = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b))
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(*raw)


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for _, leaf in leaves(result) if isinstance(leaf, torch.Tensor)]


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
