"""Times of the tiles of `kernels.dlrm.mlp_triton` against PyTorch's product, on one GPU.

    python benchmarks/gpu/tiles.py --out tiles.json

Measures linear layers and pairs of layers of MLPerf's DLRM in bfloat16, at two batch sizes: device time of
four calls on four inputs in one CUDA graph. Prints a line a layer and tile. `linear_tiles` and
`two_layer_tiles` return the fastest ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.timing import measure_device, measured_ceilings, parsed, report  # noqa: E402
from kernels.dlrm.mlp_triton import Tiles, launch_linear, launch_two_layers  # noqa: E402

BATCHES = (2048, 16384)
SETS = 4
LARGE = ((128, 256, 64, 8, 3), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4), (64, 256, 64, 4, 4))
SMALL = ((128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 5), (64, 32, 64, 4, 5), (32, 64, 64, 4, 5))
NARROW = ((128, 128, 16, 4, 2), (64, 128, 16, 4, 2), (64, 64, 16, 4, 2), (32, 128, 16, 4, 2))
LINEAR = {
    (13, 512): NARROW,
    (512, 256): SMALL,
    (256, 128): SMALL,
    (480, 1024): LARGE + SMALL,
    (1024, 1024): LARGE + SMALL,
    (1024, 512): LARGE + SMALL,
}
# Columns, hidden, outputs; tiles are rows, hidden units at a time, step, warps, stages.
TWO_LAYERS = ((512, 256, 1), (512, 256, 128), (13, 512, 256))
ROWS, UNITS = (16, 64, 128), (64, 128)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(torch.bfloat16)


def linear_sides(batch: int, columns: int, outputs: int) -> dict[str, list[Callable[[], object]]]:
    inputs = [half(batch, columns) for _ in range(SETS)]
    weight, bias, out = half(outputs, columns), half(outputs), half(batch, outputs)
    sides = {
        "PyTorch, linear": [lambda x=x: functional.linear(x, weight, bias) for x in inputs],
        "PyTorch, linear and relu": [
            lambda x=x: torch.relu(functional.linear(x, weight, bias)) for x in inputs
        ],
    }
    for tiles in (Tiles(*numbers) for numbers in LINEAR[columns, outputs]):
        sides[str(tiles)] = [
            lambda x=x, t=tiles: launch_linear(x, weight, bias, "relu", out, t) for x in inputs
        ]
    return sides


def two_layer_sides(
    batch: int, columns: int, hidden: int, outputs: int
) -> dict[str, list[Callable[[], object]]]:
    inputs = [half(batch, columns) for _ in range(SETS)]
    weights = (half(hidden, columns), half(hidden), half(outputs, hidden), half(outputs))
    out = half(batch, outputs)
    step = 16 if columns < 64 else 64
    sides = {}
    for rows in ROWS:
        for units in UNITS:
            tiles = Tiles(rows, units, step, 4, 3)
            sides[f"{rows} rows, {units} units"] = [
                lambda x=x, t=tiles: launch_two_layers(x, *weights, ("relu", "relu"), out, t) for x in inputs
            ]
    return sides


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parsed(parser)
    ceilings = measured_ceilings()
    microseconds = {}
    for batch in BATCHES:
        shapes = [(linear_sides, shape) for shape in LINEAR]
        shapes += [(two_layer_sides, shape) for shape in TWO_LAYERS]
        for sides, shape in shapes:
            times = measure_device(sides(batch, *shape), arguments.rounds)
            name = f"B {batch}, " + "-".join(map(str, shape))
            microseconds[name] = {side: asdict(spread) for side, spread in times.items()}
            ranked = sorted(times.items(), key=lambda item: item[1].median)
            print(name, "; ".join(f"{side} {spread.median:.1f}" for side, spread in ranked), flush=True)
    report(arguments.out, ceilings, times_us=microseconds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
