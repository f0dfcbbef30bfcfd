"""Timing on the GPU: a CUDA graph of many launches, its replays between events."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

REPLAY_SECONDS = 1e-3
MOST_LAUNCHES = 200
HOST_SECONDS, FEWEST_SHORT = 1e-4, 64
"""An eager launch below HOST_SECONDS may be any short kernel; FEWEST_SHORT of it hide a graph's start."""
WARM_UPS = 3
RUNS = 10


@dataclass(frozen=True)
class Timing:
    """Seconds of one launch: median and outer deciles of `runs` replays of `launches` launches each."""

    median: float
    p10: float
    p90: float
    runs: int
    launches: int


def summary(seconds: list[float], launches: int) -> Timing:
    """The timing of replays of so many launches, from their seconds."""
    single = sorted(value / launches for value in seconds)
    deciles = statistics.quantiles(single, n=10, method="inclusive")
    return Timing(statistics.median(single), deciles[0], deciles[-1], len(single), launches)


class GraphTimer:
    """Times functions by replaying CUDA graphs; all graphs share one memory pool.

    Launches in a graph run back to back, like the modules of a captured model. A launch's time is GPU time
    with the gap to its neighbour, without host time.
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        # A memory pool lives as long as a graph uses it: this graph keeps it alive between the others.
        self._keeper = torch.cuda.CUDAGraph()
        anything = torch.ones(1, device="cuda")
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._keeper.capture_begin()
            anything + 1
            self._keeper.capture_end()
        self._pool = self._keeper.pool()

    def time(self, launch: Callable[[int], object], rotation: int = 1, runs: int = RUNS) -> Timing:
        """Time `launch(i)` for i = 0, 1, ..., modulo `rotation`.

        Args:
            launch: work on the current stream, without synchronisation.
            rotation: number of different i; a replay runs each at least once.
            runs: number of timed replays.
        """
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            launch(0)
            begin, end = _event(), _event()
            begin.record()
            launch(rotation - 1)
            end.record()
        stream.synchronize()
        launches = launches_for(begin.elapsed_time(end) / 1e3)
        launches = -(-launches // rotation) * rotation
        graph = torch.cuda.CUDAGraph()
        # `torch.cuda.graph` would empty the allocator's cache at every capture.
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=self._pool)
            for i in range(launches):
                launch(i % rotation)
            graph.capture_end()
        seconds = _replays(graph, runs)
        del graph
        return summary(seconds, launches)


def launches_for(estimate: float) -> int:
    """Number of launches of a replay, from the seconds of an eager launch, which may be host time."""
    if estimate < HOST_SECONDS:
        return max(FEWEST_SHORT, min(MOST_LAUNCHES, int(REPLAY_SECONDS / max(estimate, 1e-6))))
    return max(1, int(REPLAY_SECONDS / estimate))


def _replays(graph: torch.cuda.CUDAGraph, runs: int) -> list[float]:
    # During the warm-up the host runs ahead: no timed replay waits for its launch.
    for _ in range(WARM_UPS):
        graph.replay()
    events = [(_event(), _event()) for _ in range(runs)]
    for begin, end in events:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in events]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
