"""Times of calls on the device, for a search of the fastest one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

# Rounds of the timing, and calls of a run in each round.
_ROUNDS = 9
_CALLS = 4
_WARM_UP = 2
_Form = TypeVar("_Form")


def fastest(times: dict[_Form, Sequence[float]], derived: _Form) -> _Form:
    """The form of least median time; the derived one, if the quartiles of both overlap."""
    best = min(times, key=lambda form: statistics.median(times[form]))
    upper, lower = statistics.quantiles(times[best], n=4)[2], statistics.quantiles(times[derived], n=4)[0]
    return best if upper < lower else derived


def times_of(
    runs: Sequence[Callable[[], object]],
    device: torch.device,
    *,
    captured: bool = True,
    settled_s: float = 0.0,
) -> list[list[float]]:
    """Microseconds on the device of a call of each run, in interleaved rounds of reversed order.

    Args:
        captured: whether the calls of a run are a CUDA graph, in which the GPU does not wait for the host.
            While a graph is captured, other threads cannot allocate memory or draw random numbers.
        settled_s: seconds of work in front of the first round. Under load a GPU lowers its clock.

    Raises:
        RuntimeError: the device is no CUDA GPU.
    """
    if device.type != "cuda":
        raise RuntimeError(f"a search times on a CUDA GPU, not on {device.type}: pass CUDA tensors")
    with torch.cuda.device(device):
        replays = [_captured(run).replay if captured else _repeated(run) for run in runs]
        began = time.monotonic()
        while time.monotonic() - began < settled_s:
            for replay in replays:
                replay()
            torch.cuda.current_stream().synchronize()
        taken: list[list[float]] = [[] for _ in runs]
        for number in range(_ROUNDS):
            order = list(zip(replays, taken, strict=True))
            for replay, times in order if number % 2 == 0 else reversed(order):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.current_stream().synchronize()
                start.record()
                replay()
                end.record()
                end.synchronize()
                times.append(start.elapsed_time(end) * 1e3 / _CALLS)
    return taken


def _repeated(run: Callable[[], object]) -> Callable[[], None]:
    """The calls of a round, called once."""

    def repeat() -> None:
        for _ in range(_CALLS):
            run()

    repeat()
    return repeat


def _captured(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of calls, in which the GPU does not wait for the host; replayed once."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            run()
    graph.replay()
    return graph
