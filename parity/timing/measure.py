"""Timing of single runs: by CUDA events on a GPU, by the host's clock elsewhere.

The time between two events in the work's own stream includes gaps in which the GPU waits for the host's next
launch. A replay of the same work as a captured graph has no gaps: the host queues it while the GPU is busy
with other work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from parity.base.trees import leaves

CAPTURE_WARM_UPS = 3
# First and largest time of the other work while the host queues a run: 0.13 ms and 0.13 s at 2 GHz.
BUSY_CYCLES, MOST_BUSY_CYCLES = 250_000, 256_000_000


@dataclass(frozen=True)
class Timed:
    """Seconds of each run, and the last run's result."""

    seconds: list[float]
    result: Any = None


@dataclass(frozen=True)
class Replayed:
    """Seconds of each replay, or the reason for their absence."""

    seconds: list[float]
    reason: str = ""


class NotCapturable(Exception):
    """Work that no graph can replay; the message is the reason."""


def measure(function: Callable[[], Any], repeats: int, queue: torch.cuda.Stream | None) -> Timed:
    """Time runs one by one. Each starts at the end of the one before.

    Args:
        function: The work to time. On a GPU it may return before its work is done.
        repeats: Number of runs.
        queue: The CUDA stream of the work; None if `function` does all of it before it returns.
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

    Other work keeps the GPU busy while the host queues a run. If the GPU reaches the first event before the
    run is queued to its end, the run is measured again behind twice the work.

    Args:
        function: The work to time, with few launches. It does not wait for the GPU.
        repeats: Number of runs.
        queue: The CUDA stream of the work.

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
    """A function's work on the GPU as a captured graph, with results compared with a plain run's."""

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


class Captured(Protocol):
    """Work as a captured CUDA graph."""

    def time(self, repeats: int) -> list[float]:
        """Seconds of single replays. Raises `NotCapturable`."""


class Replays:
    """Replays of work as a CUDA graph, or the reason for their absence.

    Args:
        capture: Captures the graph, at the first use. May raise `NotCapturable`.
    """

    def __init__(self, capture: Callable[[], Captured]) -> None:
        self._capture = capture
        self._graph: Captured | None = None
        self._reason = ""

    def time(self, repeats: int) -> Replayed:
        """Time so many replays; 0 only captures the graph."""
        if self._reason:
            return Replayed([], self._reason)
        try:
            if self._graph is None:
                self._graph = self._capture()
            return Replayed(self._graph.time(repeats))
        except NotCapturable as reason:
            self._graph, self._reason = None, str(reason)
            return Replayed([], self._reason)


@dataclass(frozen=True)
class TimedCall:
    """One module alone with its arguments in place, to be timed again and again.

    Attributes:
        time: Seconds of so many synchronised runs; empty where it has no time of its own.
        replays: Replays of its CUDA graph; None where there are none.
    """

    time: Callable[[int], list[float]]
    replays: Replays | None = None


def untimed(repeats: int) -> list[float]:
    """`TimedCall.time` of a module without a time of its own."""
    return []


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same bit for bit, a NaN equal to itself."""
    raw = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b))
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(*raw)


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for _, leaf in leaves(result) if isinstance(leaf, torch.Tensor)]


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
