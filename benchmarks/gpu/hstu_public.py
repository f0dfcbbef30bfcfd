"""The fused research forward at the six public configurations, against PyTorch, on one GPU.

    python benchmarks/gpu/hstu_public.py --out hstu_public.json
    python benchmarks/gpu/hstu_public.py --configs hstu_ml20m_large --batches 1 --precisions bf16

Models: the `configs/hstu_*.yaml` of --configs, whole, with random parameters that make every block matter.
Rows are full, or have uniform random lengths from 1 to the full one; the dense peers then compute the
padding. A single half-filled row has half the length. Peers: the dense reference, eager and with
torch.compile, in the same precision. Where both fused forms take a model, the one that `HSTUForward` does not
choose is a side, too. Every side is timed as a CUDA graph of three calls on three inputs: a graph serves full
and half-filled rows alike.

The verdict rule judges every side on both kinds of rows, with float64 as the oracle and eager PyTorch as
the reference, see `hstu_verdicts.py`. A failing side is not timed, and the exit code is 1. The floor is the
larger of the least times by memory, products and special functions (`least_us`).

Processes compile and capture the cells in parallel. When all are ready, one after another is timed, so that
the GPU serves one at a time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.hstu_verdicts import Inputs, Side, dense, judged  # noqa: E402
from benchmarks.gpu.timing import (  # noqa: E402
    Spread,
    captured,
    environment,
    measure,
    measured_ceilings,
    parsed,
    report,
)
from configs import load_case  # noqa: E402
from kernels.hstu_forward import HSTUForward, Settings  # noqa: E402
from kernels.hstu_forward.choice import Choice  # noqa: E402
from parity.base.precision import PRECISIONS  # noqa: E402
from reference.build import build_hstu  # noqa: E402

CONFIGS = (
    "hstu_ml1m",
    "hstu_ml1m_large",
    "hstu_ml20m",
    "hstu_ml20m_large",
    "hstu_amzn_books",
    "hstu_amzn_books_large",
)
BATCHES = (1, 16, 128)
FILLS = ("full", "half-filled")
# Inputs in rotation, so that the cache does not hold those of the previous call.
SETS = 3
# Results of the special-function unit by cycle and multiprocessor, and two of them by weight: e^x, 1 / x.
SPECIAL_A_CYCLE, SPECIAL_A_WEIGHT = 16, 2


@dataclass(frozen=True)
class Cell:
    """A configuration, its batch size and its precision."""

    config: str
    batch: int
    precision: str

    @property
    def model(self) -> object:
        """The configuration of the model."""
        return load_case(self.config).model

    @property
    def dot(self) -> str:
        """The form of the products, a key of `kernels.hstu_forward.parameters.DOT_PRECISIONS`."""
        return "fp16x3" if self.precision == "fp32" else "ieee"


def built(cell: Cell, device: str = "cuda") -> tuple[object, torch.nn.Module]:
    """The configuration and the dense reference on the device; every block matters."""
    config = cell.model
    torch.manual_seed(0)
    with torch.device(device):
        model = build_hstu(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_uvqk"):
                parameter.normal_(std=config.item_embedding_dim**-0.5)
            elif "_rel_attn_bias" in name:
                parameter.normal_(std=0.5)
    return config, model.to(device, PRECISIONS[cell.precision].dtype)


def settings_of(config: object, model: torch.nn.Module) -> Settings:
    return Settings(
        config.num_heads, config.attention_dim, config.linear_dim, model.sequence_width, config.bucket_divisor
    )


@dataclass(frozen=True)
class Fused:
    """The fused forward as a function of inputs; its first rows are the sequences'."""

    forward: HSTUForward
    width: int

    def __call__(self, x: Inputs) -> torch.Tensor:
        return self.forward(x.flat, x.offsets, x.timestamps, self.width)

    def choice(self, batch: int) -> Choice:
        return self.forward.choice(batch, self.width)


def forms_of(cell: Cell, config: object, model: torch.nn.Module) -> dict[str, Fused]:
    """Our form by its default, and the other one under its name where both take the model."""
    arguments = (dict(model.state_dict()), settings_of(config, model), cell.dot)
    ours = Fused(HSTUForward(*arguments), model.sequence_width)
    forms = {"ours": ours}
    if ours.forward.hopper_weights is not None:
        other = "triton" if ours.choice(cell.batch).backend == "hopper" else "hopper"
        forms[f"ours, {other}"] = Fused(HSTUForward(*arguments, backend=other), model.sequence_width)
    return forms


def sides_of(cell: Cell, config: object, model: torch.nn.Module) -> dict[str, Side]:
    """Eager PyTorch, torch.compile and our forms."""
    eager = dense(model)

    def call(lengths: torch.Tensor, ids: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        return model(lengths, ids, model.get_item_embeddings(ids), {"timestamps": times})

    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=False)
    return {
        "eager": eager,
        "torch.compile": lambda x: compiled(x.lengths, x.ids, x.timestamps),
        **forms_of(cell, config, model),
    }


@dataclass
class Prepared:
    """A cell's graphs, their inputs, and the verdict of each side by fill, as of `judged`.

    The graphs read the parameters that the sides hold."""

    cell: Cell
    sides: dict[str, Side]
    graphs: dict[str, Callable[[], object]]
    inputs: list[Inputs]
    fills: dict[str, list[Inputs]]
    verdicts: dict[str, dict[str, tuple[str, int]]]
    least_us: dict[str, float]


def prepared(cell: Cell, ceilings: dict[str, float], sides_of: Callable = sides_of) -> Prepared:
    """Compile, judge and capture the sides of a cell."""
    config, model = built(cell)
    width = model.sequence_width
    fills = {
        fill: [
            Inputs.drawn(cell.batch, config.num_items, width, fill == FILLS[0], seed) for seed in range(SETS)
        ]
        for fill in FILLS
    }
    sides = sides_of(cell, config, model)
    wide = build_hstu(config).double().to("cuda")
    wide.load_state_dict(model.state_dict())
    precision = PRECISIONS[cell.precision]
    verdicts = {fill: judged(precision, config, model, wide, sides, fills[fill][0]) for fill in FILLS}
    del wide
    inputs = [Inputs(*(tensor.clone() for tensor in vars(x).values())) for x in fills[FILLS[0]]]
    graphs = {}
    for name, side in sides.items():
        if all(verdicts[fill][name][0] == "PASS" for fill in FILLS):
            graphs[name] = captured([lambda side=side, x=x: side(x) for x in inputs])
    least = {
        fill: max(least_us(cell, config, batches[0].lengths, ceilings).values())
        for fill, batches in fills.items()
    }
    return Prepared(cell, sides, graphs, inputs, fills, verdicts, least)


def least_us(
    cell: Cell, config: object, lengths: torch.Tensor, ceilings: dict[str, float]
) -> dict[str, float]:
    """Microseconds by memory (each input and result once), products and special functions."""
    lengths = lengths.double()
    rows, pairs = float(lengths.sum()), float((lengths * (lengths + 1) / 2).sum())
    d, heads = config.item_embedding_dim, config.num_heads
    hk, hv = heads * config.attention_dim, heads * config.linear_dim
    weights = config.num_blocks * (d * 2 * (hk + hv) + hv * d)
    size = PRECISIONS[cell.precision].dtype.itemsize
    memory = size * (2 * rows * d + weights) / ceilings["copy_bytes_per_s"]
    # A product of float32 is three products of float16.
    factor = 3 if cell.precision == "fp32" else 1
    products = factor * (2 * rows * weights + config.num_blocks * 2 * pairs * (hk + hv))
    special = config.num_blocks * heads * pairs * SPECIAL_A_WEIGHT
    return {
        "memory": memory * 1e6,
        "products": products / ceilings["bf16_per_s"] * 1e6,
        "special functions": special / ceilings["special_per_s"] * 1e6,
    }


def timed(prepared: Prepared, rounds: int) -> list[dict]:
    """A row of the table for each fill and side."""
    rows = []
    for fill, batches in prepared.fills.items():
        for own, batch in zip(prepared.inputs, batches, strict=True):
            own.become(batch)
        torch.cuda.synchronize()
        spreads = measure({name: [graph] for name, graph in prepared.graphs.items()}, rounds)
        for name, (verdict, samples) in prepared.verdicts[fill].items():
            row = asdict(prepared.cell) | {"fill": fill, "side": name, "verdict": verdict}
            row["rounding_samples"] = samples
            row["least_us"] = prepared.least_us[fill]
            if isinstance(side := prepared.sides[name], Fused):
                row["form"] = asdict(side.choice(prepared.cell.batch))
            if name in spreads:
                s = spreads[name]
                values = (value / SETS for value in (s.median, s.p10, s.p90))
                row["device_us"] = asdict(Spread(*values, s.rounds))
            rows.append(row)
    return rows


def work(connection: object, cells: list[Cell], ceilings: dict[str, float], rounds: int) -> None:
    """A process: prepare the cells, and time them at the parent's word."""
    with torch.no_grad():
        ready = [prepared(cell, ceilings) for cell in cells]
        torch.cuda.synchronize()
        connection.send("ready")
        connection.recv()
        connection.send([row for item in ready for row in timed(item, rounds)])
        connection.recv()


def run(
    cells: list[Cell], workers: int, rounds: int, ceilings: dict[str, float], work: Callable = work
) -> list:
    """The rows of all cells, timed one after another."""
    spawning = multiprocessing.get_context("spawn")
    # The largest batches first, so that each process gets its share of them.
    ordered = sorted(cells, key=lambda cell: -cell.batch)
    shares = [share for number in range(workers) if (share := ordered[number::workers])]
    processes = []
    for share in shares:
        own, other = spawning.Pipe()
        process = spawning.Process(target=work, args=(other, share, ceilings, rounds), daemon=True)
        process.start()
        other.close()
        processes.append((process, own))
    for _, connection in processes:
        connection.recv()
    rows = []
    for _, connection in processes:
        connection.send("time")
        rows += connection.recv()
    for process, connection in processes:
        connection.send("end")
        process.join()
    return rows


def ceilings_of_chip() -> dict[str, float]:
    """The measured ceilings, and the special functions at the chip's largest clock."""
    ceilings, facts = measured_ceilings(), environment()
    torch.cuda.empty_cache()
    clock = float(facts["clocks.max.sm"].split()[0]) * 1e6
    return ceilings | {"special_per_s": SPECIAL_A_CYCLE * facts["multiprocessors"] * clock}


def show(rows: list[dict]) -> None:
    """A line a cell and fill: microseconds of each side, the faster peer's ratios to ours, the floor.

    Of ours, the first is the default; its form follows."""
    groups: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        key = (row["config"], row["batch"], row["precision"], row["fill"])
        groups.setdefault(key, {})[row["side"]] = row
    for key in sorted(groups):
        sides = groups[key]
        medians = {name: row["device_us"]["median"] for name, row in sides.items() if "device_us" in row}
        times = "  ".join(f"{name} {value:8.1f}" for name, value in medians.items())
        failed = [f"{name}: {row['verdict']}" for name, row in sides.items() if row["verdict"] != "PASS"]
        peers = [value for name, value in medians.items() if not name.startswith("ours")]
        own = [name for name in medians if name.startswith("ours")]
        ratio = " ".join(f"{min(peers) / medians[name]:5.2f}" for name in own) if peers else ""
        least = next(iter(sides.values()))["least_us"]
        form = sides.get("ours", {}).get("form", {}).get("backend", "")
        name, batch, precision, fill = key
        print(
            f"{name:22} B {batch:<4} {precision:5} {fill:12} {times} us  {ratio}  {form}, floor {least:.1f}",
            *failed,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--configs", nargs="+", default=CONFIGS, help="cases of configs/")
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "bf16"), default=("fp32", "bf16"))
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="processes")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parsed(parser)
    # One thread a process: the processes share the cores.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ceilings = ceilings_of_chip()
    cells = [
        Cell(config, batch, precision)
        for config in arguments.configs
        for batch in arguments.batches
        for precision in arguments.precisions
    ]
    rows = run(cells, arguments.workers, arguments.rounds, ceilings)
    show(rows)
    report(arguments.out, ceilings, rows=rows)
    if any(row["verdict"] != "PASS" for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
