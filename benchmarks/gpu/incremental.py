"""Latency of appending to a k/v cache against computing everything again, on one GPU.

    python benchmarks/gpu/incremental.py --out incremental.json

Research HSTU of width 256, 4 heads of 64, over streams with a window of 4,096 positions (`hstu_stream`).
"append 128" has 3,968 positions in the cache and appends 128; "append 1" has 4,095 and appends one;
"recompute" is the full forward over the 4,096. The block is the encoder with one block, its masks included;
the model has 8 blocks, embedding and output. Both sides of every ratio run in the same runtime and precision,
in the same process, in turns in every round; times are between two CUDA events around a call, so that gaps in
which the GPU waits for the host count. State, inputs and results stay on the GPU.

Before anything is timed, the last 128 rows of every side, which "append 1" makes in 128 calls that hand on
their state, are judged by `parity.verdict`: against the full forward in float64, with eager PyTorch's full
forward as the reference. A side that fails ends the program.
"""

from __future__ import annotations

import argparse
import itertools
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

from configs import HSTUConfig  # noqa: E402, the project runs from its checkout
from parity.call_stacks import no_call_stacks  # noqa: E402
from parity.captures import map_tree  # noqa: E402
from parity.environment import environment  # noqa: E402
from parity.precision import PRECISIONS  # noqa: E402
from parity.verdict import judge  # noqa: E402
from parity.weights import initial_weights, rounded  # noqa: E402
from reference.build import build_hstu_stream  # noqa: E402
from tripy_port.build import build_hstu_stream as build_port  # noqa: E402

CAPACITY = 4096
CHUNK = 128
PORTABLE_MODES = {
    "portable, step by step": {},
    "portable, graph replay": {"TRIPY_PORTABLE_CUDA_GRAPHS": "1"},
    "portable, fused, graph replay": {"TRIPY_PORTABLE_CUDA_GRAPHS": "1", "TRIPY_PORTABLE_FUSE": "1"},
}
MODES = ("PyTorch eager", "torch.compile", *PORTABLE_MODES)
WARM_UPS = 5
STATE = "state"

Tensors = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """What is measured: one block or a model of several, for a batch in a precision."""

    part: str
    num_blocks: int
    batch: int
    precision: str
    modes: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.part}, B {self.batch}, {self.precision}"

    def config(self) -> HSTUConfig:
        return HSTUConfig(
            num_items=1000,
            max_sequence_len=CAPACITY - 1,
            max_output_len=1,
            item_embedding_dim=256,
            num_blocks=self.num_blocks,
            num_heads=4,
        )


# PyTorch eager comes first: it is the reference of the check. A model of eight blocks takes Inductor longer
# than all the rest takes together; what it makes of one block is measured.
CASES = (
    Case("block", 1, 8, "bf16", MODES),
    Case("block", 1, 1, "bf16", MODES),
    Case("block", 1, 8, "fp32", (MODES[0], *PORTABLE_MODES)),
    Case("model", 8, 8, "bf16", (MODES[0], "portable, graph replay")),
)


# The work: functions of a model of either side and of its tensors. The first result is the states of
# positions, the others are what `STATE` must be in the next call.


def block_full(model: Any, x: Any, lengths: Any, timestamps: Any, mask: Any) -> list:
    return [model._hstu(x, lengths, timestamps, mask)[0]]


def block_append(
    model: Any, x: Any, lengths: Any, all_timestamps: Any, next_timestamps: Any, new_lengths: Any, state: list
) -> list:
    x, state = model._hstu.cached_forward(x, lengths, all_timestamps, next_timestamps, new_lengths, state)
    return [x, *state]


def model_full(model: Any, lengths: Any, ids: Any, timestamps: Any) -> list:
    return [model(lengths, ids, model.get_item_embeddings(ids), {"timestamps": timestamps})]


def model_append(model: Any, state: list, new_lengths: Any, ids: Any, timestamps: Any) -> list:
    encoded, state = model.extend(
        state, new_lengths, ids, model.get_item_embeddings(ids), {"timestamps": timestamps}
    )
    return [encoded, *state]


@dataclass(frozen=True)
class Work:
    """A function, the tensors that it is timed on, and the calls that make the last `CHUNK` rows.

    Each call but the first takes its `STATE` from the one before.
    """

    name: str
    function: Callable[..., list]
    tensors: Tensors
    calls: list[Tensors]


def unit_without_edges(config: HSTUConfig, most: int) -> int:
    """Seconds of which no multiple up to ``most`` lies within round-off of a time bucket's edge.

    PyTorch multiplies by the reciprocal on a GPU where a number divides, others divide: buckets of times at
    an edge differ, which is no error (`parity.families.hstu` leaves them out), and would be one here.
    """
    multiples = torch.arange(1, most + 1, dtype=torch.float64)
    for unit in itertools.count(60):
        bucket = (multiples * unit).log() / config.bucket_divisor
        if bool(((bucket - bucket.round()).abs() > 8 * 2.0**-24 * bucket).all()):
            return unit


class Streams:
    """A batch of streams of `CAPACITY` items, and the work on their last ones."""

    def __init__(self, case: Case, model: torch.nn.Module) -> None:
        generator = torch.Generator().manual_seed(1)
        b, n = case.batch, CAPACITY
        gaps_BN = (10 ** (torch.rand(b, n, generator=generator, dtype=torch.float64) * 1.3)).long()
        times_BN = gaps_BN.cumsum(1) * unit_without_edges(case.config(), int(gaps_BN.sum(1).max()))
        self.ids = torch.randint(1, 1001, (b, n), generator=generator).cuda()
        # The last position of a row that fills the dense model's width has its own time for its successor's.
        self.times = torch.cat([times_BN, times_BN[:, -1:]], dim=1).cuda()
        self.model, self.batch = model, b
        _, self.x, _ = model._input_features_preproc(
            self._count(n), self.ids, model.get_item_embeddings(self.ids), {}
        )

    def works(self, part: str) -> list[Work]:
        full, append, new = (
            (block_full, block_append, self._new_of_block)
            if part == "block"
            else (model_full, model_append, self._new_of_model)
        )
        tensors = {"lengths": self._count(CAPACITY), "timestamps": self.times[:, :-1]}
        if part == "block":
            mask = self.model._valid_attn_mask(self.model._attn_mask, self.x)
            tensors |= {"x": self.x, "mask": mask}
        else:
            tensors |= {"ids": self.ids}
        works = [Work("recompute", full, tensors, [tensors])]
        for count in (CHUNK, 1):
            calls = [new(start, count) for start in range(CAPACITY - CHUNK, CAPACITY, count)]
            calls[0][STATE] = self._state_at(CAPACITY - CHUNK, part)
            last = calls[-1] | {STATE: self._state_at(CAPACITY - count, part)}
            works.append(Work(f"append {count}", append, last, calls))
        return works

    def _count(self, value: int) -> torch.Tensor:
        return torch.full((self.batch,), value, device=self.ids.device)

    def _state_at(self, length: int, part: str) -> list[torch.Tensor]:
        """The state when this many items have been appended, in chunks."""
        state = self.model.empty_state(self.batch, CAPACITY)
        for start in range(0, length, CHUNK):
            new = self._new_of_model(start, CHUNK) | {"new_lengths": self._count(min(CHUNK, length - start))}
            _, *state = model_append(self.model, state, **new)
        return state if part == "model" else state[2:]

    def _new_of_model(self, start: int, count: int) -> Tensors:
        ids, times = self.ids[:, start : start + count], self.times[:, start : start + count + 1]
        return {"new_lengths": self._count(count), "ids": ids, "timestamps": times}

    def _new_of_block(self, start: int, count: int) -> Tensors:
        empty = self.times.new_zeros(self.batch, CAPACITY - start)
        return {
            "x": self.x[:, start : start + count],
            "lengths": self._count(start),
            "all_timestamps": torch.cat([empty, self.times[:, : start + count]], dim=1),
            "next_timestamps": self.times[:, start + 1 : start + count + 1],
            "new_lengths": self._count(count),
        }


@dataclass
class Side:
    """One way to do a work: `call` queues it in the CUDA stream `queue`. `place` makes its tensors."""

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
        """(B, CHUNK, *) on the host, of the work's calls."""
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
        """Bytes that a call allocates at most, results included."""
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
    os.environ.update({name: "0" for each in PORTABLE_MODES.values() for name in each} | PORTABLE_MODES[mode])
    with no_call_stacks():
        executable = tp.compile(lambda tensors: work.function(port, **tensors), args=[infos])
    executable.stream = tp.Stream()
    queue = torch.cuda.ExternalStream(executable.stream.ptr)
    return Side(work, mode, executable, to_tripy, queue)


def tripy_dtype(dtype: torch.dtype) -> tp.dtype:
    return getattr(tp, str(dtype).removeprefix("torch."))


def to_tripy(tensor: torch.Tensor) -> tp.Tensor:
    return tp.copy(tp.Tensor(tensor.cpu().contiguous()), tp.device("gpu"))


def check(sides: list[Side], case: Case, exact: torch.nn.Module) -> dict[str, Any]:
    """The margin of every side, up to 1 for a pass.

    Raises:
        SystemExit: a side's result is not right.
    """
    eager = next(side for side in sides if side.work.name == "recompute" and side.mode == "PyTorch eager")
    wide = map_tree(eager.work.tensors, lambda t: t.double() if t.is_floating_point() else t)
    oracle = eager.work.function(exact, **wide)[0][:, -CHUNK:].cpu()
    reference = eager.last_rows()
    margins: dict[str, Any] = {}
    for side in sides:
        for _ in range(2):  # graphs are captured by the second call, and replayed from the third on
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
    weights = rounded(initial_weights(model, seed=0), precision.dtype)
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
            # A captured graph has memory of its own, which its replays do not allocate.
            "peak_bytes": None if "graph" in side.mode else allocated,
        }
    return results


def gpu_state() -> dict[str, str]:
    """Driver, clocks and temperature, read right behind the last timing."""
    fields = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", "0"]
    found = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    return dict(zip(fields.split(","), found.strip().split(", "), strict=True))


def table(results: dict[str, Any]) -> str:
    """Medians with [p10, p90] in ms, and how many times faster an append is, in Markdown."""
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
    parser.add_argument("--out", type=Path, help="where to write JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device, and PyTorch sees none")
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
