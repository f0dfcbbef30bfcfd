"""Latency of appending to a k/v cache against recomputing, on one GPU.

    python benchmarks/gpu/incremental.py --out incremental.json

Research HSTU of width 256, 4 heads of 64, over streams with a window of 4,096 positions (`hstu_stream`).
"append 128" has 3,968 positions in the cache and appends 128; "append 1" has 4,095 and appends one.
"recompute" is the full forward over the 4,096. The block is the encoder with one block and its masks. The
model has 8 blocks, embedding and output. Both sides of a ratio have the same runtime, precision and process,
in interleaved rounds. Times are between two CUDA events around a call and include gaps in which the GPU waits
for the host. State, inputs and results stay on the GPU.

Prints a table: milliseconds of recomputing and appending by case and mode, ratios, and peak memory.

Before the timing, `parity.verdict.rule` judges the last 128 rows of every side against the full forward in
float64, with eager PyTorch's full forward as the reference. "append 1" computes them in 128 calls. A failing
side ends the program.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import nvtripy as tp
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from incremental_work import CAPACITY, CHUNK, STATE, Case, Streams, Tensors, Work  # noqa: E402

from benchmarks.output_file import output_file  # noqa: E402
from cases.hstu.weight_scales import weight_scale  # noqa: E402
from parity.base.environment import environment  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from parity.base.trees import map_tree  # noqa: E402
from parity.inputs.weights import initial_weights, rounded  # noqa: E402
from parity.runners.tripy.compiled import tripy_dtype
from parity.runners.tripy.lean_traces import lean_traces  # noqa: E402, the project runs from its checkout
from parity.verdict.rule import judge  # noqa: E402
from reference.build import build_hstu_stream  # noqa: E402
from tripy_port.build import build_hstu_stream as build_port  # noqa: E402

PORTABLE_MODES = {
    "portable, step by step": {},
    "portable, graph replay": {"TRIPY_PORTABLE_CUDA_GRAPHS": "1"},
    "portable, fused, graph replay": {"TRIPY_PORTABLE_CUDA_GRAPHS": "1", "TRIPY_PORTABLE_FUSE": "1"},
}
MODES = ("PyTorch eager", "torch.compile", *PORTABLE_MODES)
WARM_UPS = 5


# PyTorch eager comes first: it is the reference of the check. Inductor runs on one block only: its
# compilation of eight blocks takes longer than all other cases together.
CASES = (
    Case("block", 1, 8, "bf16", MODES),
    Case("block", 1, 1, "bf16", MODES),
    Case("block", 1, 8, "fp32", (MODES[0], *PORTABLE_MODES)),
    Case("model", 8, 8, "bf16", (MODES[0], "portable, graph replay")),
)


@dataclass
class Side:
    """A work in one mode: `call` queues it in the CUDA stream `queue`; `place` makes its tensors."""

    work: Work
    mode: str
    function: Callable[[Tensors], list]
    place: Callable[[torch.Tensor], Any]
    queue: torch.cuda.Stream

    def __post_init__(self) -> None:
        self._placed = map_tree(self.work.tensors, self.place)

    def call(self) -> list:
        return self.function(self._placed)

    def last_rows(self) -> torch.Tensor:
        """(B, CHUNK, *) on the host: the last rows of the work's calls."""
        rows: list[torch.Tensor] = []
        state: list = []
        for tensors in self.work.calls:
            tensors = map_tree(tensors, self.place)
            result, *state = self.function(
                tensors if STATE in tensors or not state else tensors | {STATE: state}
            )
            rows.append(torch.from_dlpack(result).cpu())
        return torch.cat(rows, dim=1)[:, -CHUNK:]

    def measure(self) -> float:
        """Milliseconds on the GPU's clock."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record(self.queue)
        self.call()
        end.record(self.queue)
        torch.cuda.synchronize()
        return start.elapsed_time(end)

    def peak_memory(self) -> int:
        """Peak bytes that a call allocates, results included."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def make_side(work: Work, mode: str, model: torch.nn.Module, port: tp.Module) -> Side:
    if mode in PORTABLE_MODES:
        return _portable_side(work, mode, port)
    function = work.function
    if mode == "torch.compile":
        function = torch.compile(function, fullgraph=True, dynamic=False)
    queue = torch.cuda.current_stream()
    return Side(work, mode, lambda tensors: function(model, **tensors), lambda tensor: tensor, queue)


def _portable_side(work: Work, mode: str, port: tp.Module) -> Side:
    infos = map_tree(work.tensors, lambda t: tp.InputInfo(tuple(t.shape), tripy_dtype(t.dtype)))
    os.environ.update(
        {name: "0" for variables in PORTABLE_MODES.values() for name in variables} | PORTABLE_MODES[mode]
    )
    with lean_traces():
        executable = tp.compile(lambda tensors: work.function(port, **tensors), args=[infos])
    executable.stream = tp.Stream()
    queue = torch.cuda.ExternalStream(executable.stream.ptr)
    return Side(work, mode, executable, to_tripy, queue)


def to_tripy(tensor: torch.Tensor) -> tp.Tensor:
    return tp.copy(tp.Tensor(tensor.cpu().contiguous()), tp.device("gpu"))


def check(sides: list[Side], case: Case, exact: torch.nn.Module) -> dict[str, Any]:
    """The margin of every side; a margin up to 1 passes.

    Raises:
        SystemExit: a side fails the verdict.
    """
    eager = next(side for side in sides if side.work.name == "recompute" and side.mode == "PyTorch eager")
    wide = map_tree(eager.work.tensors, lambda t: t.double() if t.is_floating_point() else t)
    oracle = eager.work.function(exact, **wide)[0][:, -CHUNK:].cpu()
    reference = eager.last_rows()
    margins: dict[str, Any] = {}
    for side in sides:
        for _ in range(2):  # the second call captures a graph, the third one replays it
            side.call()
        verdict = judge(oracle, reference, side.last_rows(), PRECISIONS[case.precision], longest_sum=CAPACITY)
        if not verdict.passed:
            raise SystemExit(f"{case.name}, {side.work.name}, {side.mode}: {verdict.reason}")
        margins.setdefault(side.work.name, {})[side.mode] = verdict.margin
    return margins


def spread(milliseconds: list[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile."""
    deciles = statistics.quantiles(milliseconds, n=10, method="inclusive")
    return {"median": statistics.median(milliseconds), "p10": deciles[0], "p90": deciles[-1]}


def run(case: Case, rounds: int) -> dict[str, Any]:
    """Check, then time, every work of a case in every mode."""
    precision, config = PRECISIONS[case.precision], case.config()
    model = build_hstu_stream(config)
    weights = rounded(initial_weights(model, 0, weight_scale), precision.dtype)
    model = model.to(precision.dtype).requires_grad_(False).cuda()
    model.load_state_dict(weights)
    exact = build_hstu_stream(config).double().requires_grad_(False).cuda()
    exact.load_state_dict(rounded(weights, torch.float64))
    port = build_port(config, tripy_dtype(precision.dtype))
    port.load_state_dict({name: tp.Tensor(tensor.contiguous()) for name, tensor in weights.items()})
    torch._dynamo.reset()
    with torch.inference_mode():
        works = Streams(case, model).works(case.part)
        sides = [make_side(work, mode, model, port) for mode in case.modes for work in works]
        margins = check(sides, case, exact)
        del exact
        memory = [side.peak_memory() for side in sides]
        times: list[list[float]] = [[] for _ in sides]
        for index in range(WARM_UPS + rounds):
            for side, measured in zip(sides, times, strict=True):
                milliseconds = side.measure()
                if index >= WARM_UPS:
                    measured.append(milliseconds)
    results: dict[str, Any] = {}
    for side, measured, allocated in zip(sides, times, memory, strict=True):
        results.setdefault(side.work.name, {})[side.mode] = {
            "ms": spread(measured),
            "err_over_limit": margins[side.work.name][side.mode],
            # Replays of a captured graph allocate no memory.
            "peak_bytes": None if "graph" in side.mode else allocated,
        }
    return results


def gpu_state() -> dict[str, str]:
    """Driver, clocks and temperature right after the last timing."""
    fields = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0"]
    values = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return dict(zip(fields.split(","), values.strip().split(", "), strict=True))


def table(results: dict[str, Any]) -> str:
    """Medians with [p10, p90] in ms, and ratios of recomputing to appending, in Markdown."""
    lines = [
        "| | mode | recompute | append 128 | append 1 | 128, times faster | 1, times faster "
        "| peak GB: recompute, append 128 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, works in results.items():
        for mode in works["recompute"]:
            full, *appends = (sides[mode] for sides in works.values())
            shown = ["{median:.3f} [{p10:.3f}, {p90:.3f}]".format(**side["ms"]) for side in (full, *appends)]
            ratios = [f"{full['ms']['median'] / side['ms']['median']:.1f}" for side in appends]
            peaks = [side["peak_bytes"] for side in (full, appends[0])]
            memory = "" if None in peaks else ", ".join(f"{peak / 1e9:.2f}" for peak in peaks)
            lines.append(f"| {case} | {mode} | " + " | ".join([*shown, *ratios, memory]) + " |")
    return "\n".join(lines)


def main() -> None:
    """Parses arguments, measures, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--cases", type=int, nargs="+", choices=range(len(CASES)), default=range(len(CASES)))
    parser.add_argument("--out", type=output_file, help="where to write JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device, and PyTorch has none")
    results = {}
    for index in options.cases:
        case, begun = CASES[index], time.perf_counter()
        results[case.name] = run(case, options.rounds)
        torch.cuda.empty_cache()
        print(f"{case.name}: {time.perf_counter() - begun:.0f} s", flush=True)
        if options.out:
            document = {
                "environment": environment()
                | gpu_state()
                | {"date": time.strftime("%Y-%m-%d", time.gmtime())},
                "cases": [asdict(CASES[i]) for i in options.cases],
                "rounds": options.rounds,
                "results": results,
            }
            options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
