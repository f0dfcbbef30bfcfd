"""Measures the portable runtime against PyTorch on one GPU: a table, and JSON with `--out`.

    python benchmarks/gpu.py --out gpu.json
    python benchmarks/gpu.py --batch 4 --rounds 100 --sides eager plan graph

The work is the dense HSTU of `dense_hstu.py`: 8 blocks, D 50, 2 heads of 25, N 211, float32 without TF32.
Times are between two CUDA events around a call, in the stream that the call uses, so that gaps in which the
GPU waits for the host count. The sides take turns in every round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nvtripy as tp
import torch
from dense_hstu import Shape, TorchHSTU, sample, tripy_from_torch

SHAPE = Shape()
LENGTH = 211
SIDES = {
    "eager": "PyTorch eager",
    "compile": "torch.compile",
    "compile_graph": "torch.compile, reduce-overhead",
    "plan": "portable, step by step",
    "graph": "portable, graph replay",
}
WARMUP = 10


class Side:
    """One way to run the model: `call` queues it in the CUDA stream `queue`."""

    def __init__(self, call: Callable[[], torch.Tensor], queue: torch.cuda.Stream, prepared: float):
        self.call, self.queue, self.prepared = call, queue, prepared

    def measure(self) -> tuple[float, float]:
        """Milliseconds of a call on the GPU's clock, and until it returns to the host."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record(self.queue)
        begun = time.perf_counter()
        self.call()
        host = time.perf_counter() - begun
        end.record(self.queue)
        torch.cuda.synchronize()
        return start.elapsed_time(end), host * 1e3


def make_side(name: str, model: TorchHSTU, ids: torch.Tensor, timestamps: torch.Tensor) -> Side:
    """A side, compiled and run once; `prepared` is the seconds that this took."""
    begun = time.perf_counter()
    if name in ("plan", "graph"):
        call, queue = _portable(name == "graph", model, ids, timestamps)
    else:
        call, queue = _torch(name, model, ids.cuda(), timestamps.cuda()), torch.cuda.current_stream()
    call()
    torch.cuda.synchronize()
    return Side(call, queue, time.perf_counter() - begun)


def _torch(
    name: str, model: TorchHSTU, ids: torch.Tensor, timestamps: torch.Tensor
) -> Callable[[], torch.Tensor]:
    if name == "eager":
        return lambda: model(ids, timestamps)
    mode = "reduce-overhead" if name == "compile_graph" else "default"
    compiled = torch.compile(model, fullgraph=True, dynamic=False, mode=mode)
    return lambda: compiled(ids, timestamps)


def _portable(
    graph: bool, model: TorchHSTU, ids: torch.Tensor, timestamps: torch.Tensor
) -> tuple[Callable[[], tp.Tensor], torch.cuda.Stream]:
    infos = [tp.InputInfo(tuple(ids.shape), tp.int32), tp.InputInfo(tuple(ids.shape), tp.int64)]
    os.environ["TRIPY_PORTABLE_CUDA_GRAPHS"] = str(int(graph))
    compiled = tp.compile(tripy_from_torch(model), args=infos)
    compiled.stream = tp.Stream()
    arguments = [tp.copy(tp.Tensor(tensor), tp.device("gpu")) for tensor in (ids, timestamps)]
    return lambda: compiled(*arguments), torch.cuda.ExternalStream(compiled.stream.ptr)


def spread(values: list[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile."""
    deciles = statistics.quantiles(values, n=10)
    return {"median": statistics.median(values), "p10": deciles[0], "p90": deciles[-1]}


def compare(batch: int, names: list[str], rounds: int) -> dict[str, Any]:
    """Times of each side for one batch size, and how far its result is from eager PyTorch's."""
    torch.manual_seed(0)
    model = TorchHSTU(SHAPE).eval().requires_grad_(False).cuda()
    ids, timestamps = sample(SHAPE, batch, LENGTH)
    torch._dynamo.reset()
    with torch.inference_mode():
        return _compare(model, ids, timestamps, names, rounds)


def _compare(
    model: TorchHSTU, ids: torch.Tensor, timestamps: torch.Tensor, names: list[str], rounds: int
) -> dict[str, Any]:
    sides = {name: make_side(name, model, ids, timestamps) for name in names}
    expected = model(ids.cuda(), timestamps.cuda())
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for index in range(WARMUP + rounds):
        for name, side in sides.items():
            measured = side.measure()
            if index >= WARMUP:
                times[name].append(measured)
    return {
        name: {
            "gpu_ms": spread([gpu for gpu, _ in times[name]]),
            "host_ms": spread([host for _, host in times[name]]),
            "prepare_s": side.prepared,
            "max_abs_difference": (torch.from_dlpack(side.call()) - expected).abs().max().item(),
        }
        for name, side in sides.items()
    }


def environment() -> dict[str, Any]:
    """What the numbers depend on."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "nvtripy": tp.__version__,
        "python": platform.python_version(),
        "shape": vars(SHAPE),
        "length": LENGTH,
    }


def table(results: dict[str, Any]) -> str:
    """The results for people, in Markdown."""
    lines = ["| | " + " | ".join(SIDES[name] for name in next(iter(results.values()))) + " |"]
    lines.append("|---" * lines[0].count(" | ") + "|")
    for batch, row in results.items():
        cells = ("{median:.2f} [{p10:.2f}, {p90:.2f}]".format(**side["gpu_ms"]) for side in row.values())
        lines.append(f"| {batch} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Parses arguments, measures, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 32, 128])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--out", type=Path, help="where to write JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device, and PyTorch sees none")
    results = {}
    for batch in options.batch:
        results[f"B {batch}"] = compare(batch, options.sides, options.rounds)
        if options.out:
            document = {"environment": environment(), "results": results}
            options.out.write_text(json.dumps(document, indent=1))
    print(table(results))


if __name__ == "__main__":
    main()
