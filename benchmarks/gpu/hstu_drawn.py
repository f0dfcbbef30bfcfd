"""The two forms of the fused research forward at shapes drawn by a seed, on one Hopper GPU.

    python benchmarks/gpu/hstu_drawn.py --out hstu_drawn.json --seed 1 --cells 60
    python benchmarks/gpu/hstu_drawn.py --out hstu_drawn_wide.json --seed 1 --cells 60 --wide

A seed draws embedding, heads, depth, length, batch and type, of narrow models, or of the wide ones that both
forms take. Another model is counted, and a new one is drawn. Inputs, verdicts, graphs and timing are those of
`hstu_public.py`. The program prints how often `HSTUForward` chooses the faster form, and the time that it
loses otherwise. If a side fails its verdict, the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.hstu_public import Cell, Fused, ceilings_of_chip, prepared, run, settings_of, timed  # noqa: E402
from benchmarks.gpu.timing import parsed, report  # noqa: E402
from configs import load_case  # noqa: E402
from kernels.hstu_forward import HSTUForward  # noqa: E402
from kernels.hstu_forward.hopper_launch import WIDEST  # noqa: E402
from kernels.hstu_forward.hopper_weights import WIDTH, columns_of, head_size_of, shares_of  # noqa: E402
from kernels.hstu_forward.weights import Shape  # noqa: E402

FORMS = ("triton", "hopper")
LENGTH, DEPTH, SIZE = (16, 512), (1, 16), (4, 64)


@dataclass(frozen=True)
class Ranges:
    """Least and most embedding and batch size, and most rows: the oracle fits the GPU beside others."""

    embedding: tuple[int, int]
    batch: tuple[int, int]
    most_rows: int


NARROW = Ranges((16, 128), (1, 256), 32768)
# Few rows: where they are many, Triton's form is the faster one by the rule of clusters that run at once.
WIDE = Ranges((65, 512), (1, 16), 2048)


@dataclass(frozen=True)
class DrawnCell(Cell):
    """A model of drawn sizes; `longest` is the width of its mask."""

    dim: int
    heads: int
    attention_dim: int
    linear_dim: int
    blocks: int
    longest: int

    @property
    def model(self) -> object:
        config = load_case(self.config).model
        sizes = {
            "item_embedding_dim": self.dim,
            "num_heads": self.heads,
            "attention_dim": self.attention_dim,
            "linear_dim": self.linear_dim,
            "num_blocks": self.blocks,
            "max_sequence_len": self.longest - config.max_output_len,
        }
        return config.model_copy(update=sizes)

    @property
    def _shape(self) -> Shape:
        return Shape(self.blocks, self.heads, self.attention_dim, self.linear_dim, self.dim)

    @property
    def is_narrow(self) -> bool:
        return shares_of(self._shape) == 1

    @property
    def is_wide(self) -> bool:
        """Whether the CUDA kernel for wide models takes it."""
        fits = head_size_of(self._shape) <= WIDTH and columns_of(self._shape) <= WIDEST
        return not self.is_narrow and fits


def drawn_cells(seed: int, ranges: Ranges = NARROW) -> Iterator[DrawnCell]:
    """Cells without end, sizes spread by their logarithm."""
    draw = random.Random(seed)

    def size(least: int, most: int) -> int:
        return round(least * (most / least) ** draw.random())

    while True:
        dim, heads, longest = size(*ranges.embedding), draw.choice((1, 2, 4, 8)), size(*LENGTH)
        # Public models have heads of D together; others come in between.
        own = max(1, dim // heads)
        attention_dim, linear_dim = draw.choice(((own, own), (size(*SIZE), size(*SIZE))))
        batch = min(size(*ranges.batch), ranges.most_rows // longest)
        precision = draw.choice(("fp32", "fp16", "bf16"))
        yield DrawnCell(
            "hstu_ml1m", batch, precision, dim, heads, attention_dim, linear_dim, size(*DEPTH), longest
        )


def cells_of(count: int, seed: int, wide: bool = False) -> tuple[list[DrawnCell], int]:
    """So many cells of narrow models, or of wide ones, and the number of others in between."""
    cells: list[DrawnCell] = []
    others = 0
    for cell in drawn_cells(seed, WIDE if wide else NARROW):
        if len(cells) == count:
            break
        if cell.is_wide if wide else cell.is_narrow:
            cells.append(cell)
        else:
            others += 1
    return cells, others


def work(connection: object, cells: list[DrawnCell], ceilings: dict[str, float], rounds: int) -> None:
    """As `hstu_public.work`, with both forms as sides and the default's choice in each row."""
    choices = {}

    def forms(cell: DrawnCell, config: object, model: torch.nn.Module) -> dict[str, Fused]:
        arguments = (dict(model.state_dict()), settings_of(config, model), cell.dot)
        chosen = HSTUForward(*arguments).choice(cell.batch, model.sequence_width)
        choices[cell] = chosen.backend
        return {name: Fused(HSTUForward(*arguments, backend=name), model.sequence_width) for name in FORMS}

    with torch.no_grad():
        ready = [prepared(cell, ceilings, forms) for cell in cells]
        torch.cuda.synchronize()
        connection.send("ready")
        connection.recv()
        rows = [row | {"chosen": choices[item.cell]} for item in ready for row in timed(item, rounds)]
        connection.send(rows)
        connection.recv()


def compared(rows: list[dict], fill: str) -> list[dict]:
    """A row a cell: its sizes, both times, the chosen form, and its time over the faster one's."""
    keys = tuple(asdict(next(drawn_cells(0))))
    cells: dict[tuple, dict] = {}
    for row in rows:
        if row["fill"] == fill and "device_us" in row:
            cell = cells.setdefault(tuple(row[key] for key in keys), {key: row[key] for key in keys})
            cell[row["side"]] = row["device_us"]["median"]
            cell["chosen"] = row["chosen"]
    both = [cell for cell in cells.values() if all(name in cell for name in FORMS)]
    for cell in both:
        cell["loss"] = cell[cell["chosen"]] / min(cell[name] for name in FORMS)
    return both


def show(cells: list[dict], fill: str) -> dict[str, float]:
    """Print the cells and return the shares."""
    for cell in sorted(cells, key=lambda cell: cell["loss"]):
        print(
            f"{fill}  D {cell['dim']:3} heads {cell['heads']} of {cell['attention_dim']} and "
            f"{cell['linear_dim']}, {cell['blocks']:2} blocks, N {cell['longest']:3} B {cell['batch']:3} "
            f"{cell['precision']:4}  triton {cell['triton']:8.1f} us  hopper {cell['hopper']:8.1f} us  "
            f"{cell['chosen']:6} {cell['loss']:5.2f}"
        )
    losses = [cell["loss"] for cell in cells]
    named = {f"{name} alone": [cell[name] / min(cell[x] for x in FORMS) for cell in cells] for name in FORMS}
    shares = {
        "cells": len(cells),
        "faster form": sum(loss == 1.0 for loss in losses),
        "worst loss": max(losses),
        "mean loss": statistics.fmean(losses),
    }
    for name, values in named.items():
        shares |= {f"{name}, mean loss": statistics.fmean(values), f"{name}, worst loss": max(values)}
    print(fill, ", ".join(f"{name} {value:.3g}" for name, value in shares.items()), flush=True)
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, required=True, help="of the drawn shapes")
    parser.add_argument("--cells", type=int, default=60)
    parser.add_argument("--wide", action="store_true", help="wide models")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="processes")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parsed(parser)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cells, others = cells_of(arguments.cells, arguments.seed, arguments.wide)
    print(f"{len(cells)} cells that both forms take, {others} others drawn in between", flush=True)
    ceilings = ceilings_of_chip()
    rows = run(cells, arguments.workers, arguments.rounds, ceilings, work)
    shares = {fill: show(compared(rows, fill), fill) for fill in ("half-filled", "full")}
    report(
        arguments.out,
        ceilings,
        seed=arguments.seed,
        wide=arguments.wide,
        others=others,
        shares=shares,
        rows=rows,
    )
    failed = [row for row in rows if row["verdict"] != "PASS"]
    for row in failed:
        print("FAILS", {key: value for key, value in row.items() if key != "device_us"})
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
