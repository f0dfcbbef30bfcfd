"""The port's compiled graph on the portable runtime against torch.compile on the dense reference, on a GPU.

    python benchmarks/gpu/portable_graph.py --out portable_graph.json

Research HSTU as in `configs/hstu_ml1m_large.yaml`: 8 blocks, D 50, 2 heads of 25, N 211, synthetic histories.
Each side is a parity runner. The runner tripy runs the port without plugins, step by step (`plan`) and fused
(`fused`, TRIPY_PORTABLE_FUSE=1), and both as replays of a graph (TRIPY_PORTABLE_CUDA_GRAPHS=1) with copies of
inputs and results. Times are between two CUDA events around a call and include host time.

A cell, one precision and one batch size, is one process, in which all sides run in interleaved rounds. The
processes compile side by side. When all are ready, they time one after another.

Prints a table: milliseconds of each side by precision and batch size, ratios, and errors. The last timed
result is compared with float64.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.output_file import output_file  # noqa: E402, the project runs from its checkout
from cases.shipped import load_case  # noqa: E402
from parity.base.environment import environment  # noqa: E402
from parity.base.gpu_state import gpu_state  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from parity.inputs.arrays import make_inputs  # noqa: E402
from parity.inputs.weights import (
    case_weights,  # noqa: E402
)
from parity.report.assemble import latency_report  # noqa: E402
from parity.runners import Runner, make_runner  # noqa: E402
from parity.timing.measure import Timed  # noqa: E402

FUSE, GRAPHS = "TRIPY_PORTABLE_FUSE", "TRIPY_PORTABLE_CUDA_GRAPHS"
PEERS = {"fused": "torch_compile", "fused_graph": "torch_compile_graphs", "graph": "torch_compile_graphs"}
WARM_UPS = 10

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Side:
    """One runner, in one of the portable runtime's modes."""

    name: str
    runner: Runner
    fuse: bool
    replays: bool

    def time(self, arrays: Arrays, repeats: int) -> Timed:
        """Seconds of single calls, and the outputs of the last."""
        # The first call compiles the executable, which reads these variables.
        os.environ |= {FUSE: str(int(self.fuse)), GRAPHS: str(int(self.replays))}
        return self.runner.time(arrays, repeats)


def make_sides(case: Any, precision: str, tensors: Mapping[str, torch.Tensor]) -> list[Side]:
    """All sides, loaded."""
    sides = [
        Side(name, make_runner(name), False, False)
        for name in ("torch", "torch_compile", "torch_compile_graphs")
    ]
    for name in ("plan", "fused", "graph", "fused_graph"):
        sides.append(Side(name, make_runner("tripy"), name.startswith("fused"), name.endswith("graph")))
    for side in sides:
        side.runner.load(case, PRECISIONS[precision], tensors)
    return sides


def relative_error(outputs: Mapping[str, torch.Tensor], exact: Mapping[str, torch.Tensor]) -> float:
    """The largest relative L2 error of any output."""
    return max(
        ((outputs[name].double() - tensor).norm() / tensor.norm()).item() for name, tensor in exact.items()
    )


@dataclass(frozen=True)
class Cell:
    """One precision and batch size, and the signs between its process and the others.

    Attributes:
        ready: All cells wait here until each one has compiled.
        turn: Held by the cell that times.
        results: Where each cell puts its label, its results and the GPU's state behind it.
    """

    precision: str
    batch: int
    rounds: int
    ready: Any
    turn: Any
    results: Any

    @property
    def label(self) -> str:
        return f"{self.precision} B {self.batch}"

    def run(self) -> None:
        """Measures. A cell that fails does not keep the others waiting."""
        try:
            case = load_case("hstu_ml1m_large").with_input(batch_size=self.batch)
            found = measure(case, self.precision, self.rounds, partial(print, self.label), self._timing)
            self.results.put((self.label, found, gpu_state()))
        except BaseException:
            self.ready.abort()
            raise

    @contextmanager
    def _timing(self) -> Iterator[None]:
        self.ready.wait()
        with self.turn:
            yield


def measure(
    case: Any,
    precision: str,
    rounds: int,
    progress: Callable[[str], None],
    timing: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> dict[str, Any]:
    """Times and errors of every side for one case; entering `timing` waits until the machine is quiet."""
    tensors = case_weights(case)[0]
    arrays = make_inputs(case).typical.arrays
    sides = make_sides(case, precision, tensors)
    prepared = {}
    for side in sides:
        begun = time.perf_counter()
        side.time(arrays, WARM_UPS)
        prepared[side.name] = time.perf_counter() - begun
        progress(f"{side.name} prepared in {prepared[side.name]:.1f} s")
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    outputs: dict[str, Mapping[str, torch.Tensor]] = {}
    with timing():
        for _ in range(rounds):
            for side in sides:
                # The first call after another side's does not count.
                timed = side.time(arrays, 3)
                seconds[side.name] += timed.seconds[1:]
                outputs[side.name] = timed.result
    oracle = make_runner("oracle")
    oracle.load(case, PRECISIONS[precision], tensors)
    exact = oracle.run(arrays)
    return {
        side.name: {
            **latency_report(seconds[side.name]).model_dump(exclude={"replay"}),
            "prepare_s": prepared[side.name],
            "relative_error": relative_error(outputs[side.name], exact),
        }
        for side in sides
    }


def table(results: Mapping[str, Any]) -> str:
    """Milliseconds, and ratios of the peers' medians to the portable runtime's, in Markdown."""
    names = list(next(iter(results.values())))
    heads = [*names, *(f"{peer} / {name}" for name, peer in PEERS.items()), "error: torch, fused"]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (1 + len(heads)) + "|"]
    for label, row in results.items():
        cells = [
            f"{s['median'] * 1e3:.3f} [{s['p10'] * 1e3:.3f}, {s['p90'] * 1e3:.3f}]" for s in row.values()
        ]
        cells += [f"{row[peer]['median'] / row[name]['median']:.2f}" for name, peer in PEERS.items()]
        cells.append(f"{row['torch']['relative_error']:.1e}, {row['fused']['relative_error']:.1e}")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Parses arguments, measures, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 32, 128])
    parser.add_argument("--precision", nargs="+", choices=list(PRECISIONS), default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=output_file, help="where to write JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device, and PyTorch has none")
    document: dict[str, Any] = {"environment": environment(), "gpu": {"before": gpu_state()}}
    # A process with CUDA cannot fork.
    own = multiprocessing.get_context("spawn")
    sizes = [(precision, batch) for precision in options.precision for batch in options.batch]
    ready, turn, queue = own.Barrier(len(sizes)), own.Lock(), own.Queue()
    cells = [Cell(precision, batch, options.rounds, ready, turn, queue) for precision, batch in sizes]
    processes = [own.Process(target=cell.run) for cell in cells]
    for process in processes:
        process.start()
    found: dict[str, Any] = {}
    while len(found) < len(cells) and (any(p.is_alive() for p in processes) or not queue.empty()):
        try:
            label, result, state = queue.get(timeout=1)
        except Empty:
            if any(p.exitcode for p in processes):
                # One that was killed told nobody.
                ready.abort()
            continue
        found[label] = result
        document["gpu"][f"after {label}"] = state
        results = {cell.label: found[cell.label] for cell in cells if cell.label in found}
        if options.out:
            options.out.write_text(json.dumps({**document, "results": results}, indent=1))
    for process in processes:
        process.join()
    if found:
        print(table({cell.label: found[cell.label] for cell in cells if cell.label in found}))
    missing = [cell.label for cell in cells if cell.label not in found]
    if missing:
        sys.exit(f"no result: {', '.join(missing)}; see the errors above")


if __name__ == "__main__":
    main()
