"""Measures the portable runtime against PyTorch on one GPU: tables, and JSON with `--out`.

    python benchmarks/gpu.py --out gpu.json
    python benchmarks/gpu.py --batch 4 --dtype float32 --rounds 100 --sides eager plan graph

The work is the dense HSTU of `dense_hstu.py`: 8 blocks, D 50, 2 heads of 25, N 211, in float32 (without TF32)
and in bfloat16. A time is the span between two CUDA events around a call, in the call's stream. It includes
gaps in which the GPU waits for the host. Every round interleaves the sides. Each result is compared with
float64.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
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
    "compile_graph": "torch.compile, CUDA graphs",
    "plan": "portable",
    "graph": "portable, graphs",
    "fused": "portable, fused",
    "fused_graph": "portable, fused, graphs",
}
PEERS = {"plan": "compile", "graph": "compile_graph", "fused": "compile", "fused_graph": "compile_graph"}
DTYPES = {"float32": tp.float32, "bfloat16": tp.bfloat16}
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


class Model:
    """The model in one type: in PyTorch, and compiled by nvtripy for any batch up to a greatest one."""

    def __init__(self, dtype: str, greatest: int, folder: Path):
        torch.manual_seed(0)
        self.dtype = dtype
        self.torch = TorchHSTU(SHAPE).eval().requires_grad_(False).to("cuda", getattr(torch, dtype))
        self._file = folder / f"{dtype}.tpymodel"
        dims = ((1, 1, greatest), LENGTH)
        infos = [tp.InputInfo(dims, tp.int32), tp.InputInfo(dims, tp.int64)]
        tp.compile(tripy_from_torch(self.torch, DTYPES[dtype]), args=infos).save(str(self._file))

    def exact(self, ids: torch.Tensor, timestamps: torch.Tensor) -> torch.Tensor:
        """The result in float64, of the weights as they are in the type."""
        model = TorchHSTU(SHAPE).eval().requires_grad_(False)
        model.load_state_dict(self.torch.state_dict())
        return model.to("cuda", torch.float64)(ids, timestamps)

    def side(self, name: str, ids: torch.Tensor, timestamps: torch.Tensor) -> Side:
        """A side, compiled and run as often as it takes to prepare it, which takes `prepared` seconds."""
        begun = time.perf_counter()
        if name in ("eager", "compile", "compile_graph"):
            call, queue = self._torch_call(name, ids, timestamps), torch.cuda.current_stream()
        else:
            call, queue = self._portable_call(name, ids, timestamps)
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        return Side(call, queue, time.perf_counter() - begun)

    def _torch_call(
        self, name: str, ids: torch.Tensor, timestamps: torch.Tensor
    ) -> Callable[[], torch.Tensor]:
        if name == "eager":
            return lambda: self.torch(ids, timestamps)
        mode = "reduce-overhead" if name == "compile_graph" else "default"
        compiled = torch.compile(self.torch, fullgraph=True, dynamic=False, mode=mode)
        return lambda: compiled(ids, timestamps)

    def _portable_call(
        self, name: str, ids: torch.Tensor, timestamps: torch.Tensor
    ) -> tuple[Callable[[], tp.Tensor], torch.cuda.Stream]:
        os.environ["TRIPY_PORTABLE_FUSE"] = str(int(name.startswith("fused")))
        os.environ["TRIPY_PORTABLE_CUDA_GRAPHS"] = str(int(name.endswith("graph")))
        executable = tp.Executable.load(str(self._file))
        executable.stream = tp.Stream()
        arguments = [tp.Tensor(ids), tp.Tensor(timestamps)]
        return lambda: executable(*arguments), torch.cuda.ExternalStream(executable.stream.ptr)


def spread(values: list[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile."""
    deciles = statistics.quantiles(values, n=10)
    return {"median": statistics.median(values), "p10": deciles[0], "p90": deciles[-1]}


def compare(model: Model, batch: int, names: list[str], rounds: int) -> dict[str, Any]:
    """Times of each side for one batch size, and its result's distance from float64."""
    ids, timestamps = (tensor.cuda() for tensor in sample(SHAPE, batch, LENGTH))
    torch._dynamo.reset()
    with torch.inference_mode():
        sides = {name: model.side(name, ids, timestamps) for name in names}
        expected = model.exact(ids, timestamps)
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
                "runs": rounds,
                "prepare_s": side.prepared,
                "max_abs_error": (torch.from_dlpack(side.call()) - expected).abs().max().item(),
            }
            for name, side in sides.items()
        }


def environment() -> dict[str, Any]:
    """Versions and hardware of the measurement."""
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


def clocks() -> str:
    """Present driver, clocks, power and temperature from nvidia-smi, or the reason for their absence."""
    fields = "driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"
    try:
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "--id=0"]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"


def table(results: dict[str, Any]) -> str:
    """The results for people, in Markdown: milliseconds, and ratios to the named peer."""
    names = list(next(iter(results.values())))
    ratios = [name for name in names if PEERS.get(name) in names]
    lines = [
        "| | "
        + " | ".join([SIDES[n] for n in names] + [f"{SIDES[PEERS[n]]} / {SIDES[n]}" for n in ratios])
        + " |"
    ]
    lines.append("|---" * lines[0].count(" | ") + "|")
    for label, row in results.items():
        cells = ["{median:.3f} [{p10:.3f}, {p90:.3f}]".format(**side["gpu_ms"]) for side in row.values()]
        for name in ratios:
            cells.append(f"{row[PEERS[name]]['gpu_ms']['median'] / row[name]['gpu_ms']['median']:.2f}")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Parses arguments, measures, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 32, 128])
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--out", type=Path, help="where to write JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device, and PyTorch has none")
    results = {}
    document = {"environment": environment(), "clocks": {"before": clocks()}, "results": results}
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        for dtype in options.dtype:
            model = Model(dtype, max(options.batch), Path(folder))
            for batch in options.batch:
                results[f"{dtype} B {batch}"] = compare(model, batch, options.sides, options.rounds)
                document["clocks"][f"after {dtype} B {batch}"] = clocks()
                if options.out:
                    options.out.write_text(json.dumps(document, indent=1))
    print(table(results))


if __name__ == "__main__":
    main()
