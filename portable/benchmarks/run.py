"""Measures the portable runtime against PyTorch eager, in one run: a table, then one JSON line.

    python benchmarks/run.py                      # all parts
    python benchmarks/run.py --batch 4 --rounds 15 --parts latency
    python benchmarks/run.py --pair package.module:function

`--pair` names a function of (batch, length) that returns a `Pair`; the default is the self-contained HSTU of
`dense_hstu.py`. Rounds of the two sides are interleaved: drift of the machine affects both.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import importlib
import json
import platform
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nvtripy as tp
import torch
from dense_hstu import Shape, TorchHSTU, sample, tripy_from_torch

SHAPE = Shape()
LENGTH = 211


@dataclass
class Pair:
    """The same work on both sides: calls without arguments and with comparable results."""

    torch_call: Callable[[], torch.Tensor]
    tripy_call: Callable[[], tp.Tensor]


def on_gpu(tensor: torch.Tensor) -> tp.Tensor:
    """A copy in nvtripy's GPU memory."""
    return tp.copy(tp.Tensor(tensor), tp.device("gpu"))


def hstu_pair(batch: int, length: int) -> Pair:
    """The self-contained dense HSTU, with the same weights and inputs on both sides."""
    torch.manual_seed(0)
    model = TorchHSTU(SHAPE).eval()
    ids, timestamps = sample(SHAPE, batch, length)
    compiled = tp.compile(tripy_from_torch(model), args=_infos(batch, length))
    arguments = on_gpu(ids), on_gpu(timestamps)
    return Pair(lambda: model(ids, timestamps), lambda: compiled(*arguments))


def _infos(batch: int, length: int) -> list[tp.InputInfo]:
    return [tp.InputInfo((batch, length), tp.int32), tp.InputInfo((batch, length), tp.int64)]


def spread(seconds: list[float], unit: float) -> dict[str, float]:
    """Median and quartiles, in units of `unit` seconds."""
    low, median, high = statistics.quantiles(seconds, n=4)
    return {"median": median / unit, "q1": low / unit, "q3": high / unit}


def interleaved(calls: list[Callable[[], Any]], rounds: int, warmup: int = 3) -> list[list[float]]:
    """Seconds of each call in each interleaved round."""
    times: list[list[float]] = [[] for _ in calls]
    with torch.inference_mode():
        for index in range(warmup + rounds):
            for call, record in zip(calls, times):
                start = time.perf_counter()
                call()
                if index >= warmup:
                    record.append(time.perf_counter() - start)
    return times


def latency(make_pair: Callable[[int, int], Pair], batches: list[int], rounds: int) -> dict[str, Any]:
    """Milliseconds of both sides for each batch size, and the largest difference of their results."""
    results = {}
    for batch in batches:
        pair = make_pair(batch, LENGTH)
        with torch.inference_mode():
            difference = (torch.from_dlpack(pair.tripy_call()) - pair.torch_call()).abs().max().item()
        torch_times, tripy_times = interleaved([pair.torch_call, pair.tripy_call], rounds)
        ratios = [ours / theirs for ours, theirs in zip(tripy_times, torch_times)]
        results[f"B{batch}"] = {
            "torch_ms": spread(torch_times, 1e-3),
            "portable_ms": spread(tripy_times, 1e-3),
            "ratio": spread(ratios, 1.0),
            "max_abs_difference": difference,
        }
    return results


def compile_time() -> dict[str, Any]:
    """Wall seconds of tp.compile for B 4, and the share of each package by a profiler."""
    torch.manual_seed(0)
    port = tripy_from_torch(TorchHSTU(SHAPE).eval())
    seconds = []
    for _ in range(3):
        gc.collect()
        start = time.perf_counter()
        compiled = tp.compile(port, args=_infos(4, LENGTH))
        seconds.append(time.perf_counter() - start)
    profile = cProfile.Profile()
    profile.enable()
    tp.compile(port, args=_infos(4, LENGTH))
    profile.disable()
    own: dict[str, float] = {}
    for (file, _, _), (_, _, own_seconds, _, _) in pstats.Stats(profile).stats.items():
        own[_package(file)] = own.get(_package(file), 0.0) + own_seconds
    total = sum(own.values())
    return {
        "seconds": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
        "share": {
            package: share / total for package, share in sorted(own.items(), key=lambda item: -item[1])
        },
        "operations_after_folding": len(compiled._executable.program.nodes),
    }


def _package(file: str) -> str:
    path = Path(file).as_posix()
    if "/nvtripy/utils/stack_info" in path:
        return "nvtripy (stack information)"
    for package in ("tripy_portable", "nvtripy", "torch"):
        if f"/{package}/" in path:
            return package
    return "python"


def call_overhead(rounds: int) -> dict[str, Any]:
    """Microseconds of a compiled one-operation function, the same through the session, and torch's own."""
    compiled = tp.compile(tp.relu, args=[tp.InputInfo((2, 2), tp.float32)])
    argument = tp.ones((2, 2), dtype=tp.float32).eval()
    memrefs = [argument.trace_tensor.producer.data]
    session, tensor = compiled._session, torch.ones(2, 2)

    def many(call: Callable[[], Any]) -> Callable[[], None]:
        def repeat() -> None:
            for _ in range(200):
                call()

        return repeat

    calls = [
        many(lambda: compiled(argument)),
        many(lambda: session.execute_function("main", in_args=memrefs)),
        many(lambda: torch.relu(tensor)),
    ]
    names = ("executable_us", "session_us", "torch_us")
    return {name: spread(times, 200e-6) for name, times in zip(names, interleaved(calls, rounds))}


def memory(batch: int) -> dict[str, Any]:
    """Peak resident memory of each side above its imports, in MB. Each side has its own process."""
    peaks = {}
    for side in ("torch", "portable"):
        command = [sys.executable, __file__, "--memory-of", side, "--batch", str(batch)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        peaks[f"{side}_mb"] = float(output)
    return {**peaks, "ratio": peaks["portable_mb"] / peaks["torch_mb"], "batch": batch}


def _growth_mb(work: Callable[[], Any]) -> float:
    """Rise of the peak of resident memory above the present value, in MB (Linux)."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status_mb("VmRSS")
    work()
    return _status_mb("VmHWM") - before


def _status_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024


def measure_memory(side: str, batch: int) -> float:
    """Runs one side, weights and inputs in place, and returns the growth of the peak, in megabytes."""
    torch.set_num_threads(1)
    tp.ones((2,)).eval()
    pair = hstu_pair(batch, LENGTH)
    call = pair.torch_call if side == "torch" else pair.tripy_call

    def work() -> None:
        with torch.inference_mode():
            for _ in range(3):
                call()

    return _growth_mb(work)


def environment() -> dict[str, Any]:
    """Versions and hardware of the measurement."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nvtripy": tp.__version__,
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
    }


def table(results: dict[str, Any]) -> str:
    """The results for people."""
    lines = []
    for name, row in results.get("latency", {}).items():
        theirs, ours, ratio = row["torch_ms"], row["portable_ms"], row["ratio"]
        lines.append(
            f"latency {name:<4} torch {theirs['median']:8.2f} ms [{theirs['q1']:.2f}, {theirs['q3']:.2f}]   "
            f"portable {ours['median']:8.2f} ms [{ours['q1']:.2f}, {ours['q3']:.2f}]   "
            f"ratio {ratio['median']:.3f} [{ratio['q1']:.3f}, {ratio['q3']:.3f}]   "
            f"difference {row['max_abs_difference']:.1e}"
        )
    if "compile" in results:
        row = results["compile"]
        shares = ", ".join(f"{name} {share:.0%}" for name, share in row["share"].items())
        lines.append(f"compile {row['seconds']['median']:.2f} s: {shares}")
        lines.append(f"operations left after folding: {row['operations_after_folding']}")
    if "overhead" in results:
        row = results["overhead"]
        lines.append(
            "one operation: "
            + ", ".join(f"{name.removesuffix('_us')} {value['median']:.1f} us" for name, value in row.items())
        )
    if "memory" in results:
        row = results["memory"]
        lines.append(
            f"peak memory B{row['batch']}: torch {row['torch_mb']:.1f} MB, portable "
            f"{row['portable_mb']:.1f} MB, "
            f"ratio {row['ratio']:.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Parses arguments, measures, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 32])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--parts", nargs="+", default=["latency", "compile", "overhead", "memory"])
    parser.add_argument("--pair", default="run:hstu_pair", help="module:function that returns a Pair")
    parser.add_argument("--memory-of", choices=("torch", "portable"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        print(measure_memory(options.memory_of, options.batch[0]))
        return
    torch.set_num_threads(1)
    module, _, function = options.pair.partition(":")
    results: dict[str, Any] = {"environment": environment()}
    if "latency" in options.parts:
        make_pair = (
            hstu_pair
            if options.pair == "run:hstu_pair"
            else getattr(importlib.import_module(module), function)
        )
        results["latency"] = latency(make_pair, options.batch, options.rounds)
    if "compile" in options.parts:
        results["compile"] = compile_time()
    if "overhead" in options.parts:
        results["overhead"] = call_overhead(options.rounds)
    if "memory" in options.parts:
        results["memory"] = memory(batch=options.batch[-1])
    print(table(results))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
