"""Timing of the GPU benchmarks: interleaved rounds, the GPU's clock, median and deciles, environment.

A side is a list of calls that do the same work on different inputs, so that the caches do not hold the inputs
of the next call. There are two timings:

* calls: the list back to back, queued from Python, between two CUDA events;
* device: the same list in one CUDA graph, without gaps in which the GPU waits for the host.

Each round runs every side once; the order is reversed from round to round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.output_file import output_file
from parity.base.files import replacing

Calls = Sequence[Callable[[], object]]
WARMUP = 3


@dataclass(frozen=True)
class Spread:
    """Microseconds of one call: median, 10th and 90th percentile of ``rounds`` rounds."""

    median: float
    p10: float
    p90: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        deciles = statistics.quantiles(values, n=10)
        return cls(statistics.median(values), deciles[0], deciles[-1], len(values))


def captured(calls: Calls) -> Callable[[], object]:
    """A function that replays one CUDA graph of all calls and returns their results."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUP):
            for call in calls:
                call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call() for call in calls]

    def replay() -> object:
        graph.replay()
        return results

    return replay


def measure(sides: Mapping[str, Calls], rounds: int) -> dict[str, Spread]:
    """Microseconds of one call of each side, in interleaved rounds."""
    for calls in sides.values():
        for _ in range(WARMUP):
            for call in calls:
                call()
    names = list(sides)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            for call in sides[name]:
                call()
            end.record()
            torch.cuda.synchronize()
            taken[name].append(start.elapsed_time(end) * 1e3 / len(sides[name]))
    return {name: Spread.of(values) for name, values in taken.items()}


def measure_device(sides: Mapping[str, Calls], rounds: int) -> dict[str, Spread]:
    """`measure` with one graph of the calls of each side."""
    graphs = {name: [captured(calls)] for name, calls in sides.items()}
    return {
        name: Spread(*(value / len(sides[name]) for value in (s.median, s.p10, s.p90)), s.rounds)
        for name, s in measure(graphs, rounds).items()
    }


def copy_bandwidth(rounds: int = 20) -> float:
    """Bytes a second of a copy of 2 GiB on the device, counting bytes read and bytes written."""
    source = torch.empty(1 << 29, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    taken = measure({"copy": [lambda: target.copy_(source)]}, rounds)["copy"].median
    return 2 * source.numel() * source.element_size() / (taken * 1e-6)


def matmul_rate(dtype: torch.dtype, size: int = 8192, rounds: int = 10) -> float:
    """Operations a second of a square matrix product of random numbers."""
    left, right = (torch.randn(size, size, dtype=dtype, device="cuda") for _ in range(2))
    taken = measure({"product": [lambda: left @ right]}, rounds)["product"].median
    return 2 * size**3 / (taken * 1e-6)


def environment() -> dict[str, object]:
    """GPU, driver, current clocks and versions."""
    import triton

    fields = "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu"
    query = subprocess.run(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0"],
        capture_output=True,
        text=True,
        check=True,
    )
    gpu = dict(zip(fields.split(","), query.stdout.strip().split(", "), strict=True))
    return gpu | {
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
    }


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line with --out. Ends the program without a GPU."""
    parser.add_argument("--out", type=output_file, help="JSON file to write")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device: run this on a machine with a GPU")
    return arguments


def measured_ceilings() -> dict[str, float]:
    """The ceilings of the floors, measured now and printed."""
    ceilings = {"copy_bytes_per_s": copy_bandwidth(), "bf16_per_s": matmul_rate(torch.bfloat16)}
    bandwidth, rate = (value / 1e12 for value in ceilings.values())
    print(f"copy {bandwidth:.2f} TB/s, bf16 {rate:.0f} TFLOP/s", flush=True)
    return ceilings


def report(path: Path | None, ceilings: dict[str, float], **results: object) -> None:
    """Write results with their command, environment and ceilings as JSON; without a path, do nothing.

    A call after every case leaves a whole file behind a run that is stopped.
    """
    if path is not None:
        facts = {"command": sys.argv, "environment": environment(), "ceilings": ceilings}
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(facts | results, indent=1) + "\n")
