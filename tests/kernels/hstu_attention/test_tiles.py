"""The Hopper kernel's arithmetic of visible columns, compiled for the CPU, against the mask's definition."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.hstu_attention import ProductionMask
from kernels.hstu_attention.eager import visible
from kernels.hstu_attention.hopper_launch import SOURCE

COMPILER = shutil.which("c++") or shutil.which("g++")
SHIM = """
#include "tiles.cuh"
using namespace hopper;
// Writes the limits of what some and all of the rows see, then the tile's blocks; returns their number.
extern "C" int tile(int begin, int end, int first_target, int contextual, int window, int columns, int* out) {
    const Mask mask{contextual, window};
    const Blocks blocks = blocks_of(begin, end, first_target, mask, columns);
    const Visible seen = visible_to(begin, end, first_target, mask);
    const int limits[4] = {seen.some.begin, seen.some.end, seen.all.begin, seen.all.end};
    for (int i = 0; i < 4; ++i) *out++ = limits[i];
    for (int i = 0; i < blocks.count; ++i) *out++ = blocks.at(i);
    return blocks.count;
}
extern "C" void row(int row, int first_target, int contextual, int window, int* out) {
    const Span span = columns_of(row, first_target, Mask{contextual, window});
    out[0] = span.begin, out[1] = span.end;
}
"""
Tile = Callable[..., tuple[list[int], list[int]]]

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("tiles")
    (folder / "shim.cpp").write_text(SHIM)
    plain = ["-D__host__=", "-D__device__=", "-std=c++17", "-O1", "-shared", "-fPIC"]
    target = folder / "tiles.so"
    command = [COMPILER, *plain, "-I", str(Path(SOURCE).parent), str(folder / "shim.cpp"), "-o", str(target)]
    subprocess.run(command, check=True, timeout=120)
    return ctypes.CDLL(str(target))


def drawn(seed: int) -> tuple[int, int, int, int]:
    """Length, targets, contextual rows and window; each part is absent in some."""
    generator = random.Random(seed)
    length = generator.choice((1, 3, 63, 64, 65, 130, 257, 400))
    targets = generator.choice((0, 0, 1, length // 3, length - 1, length))
    contextual = generator.choice((0, 0, 1, 5, 70))
    return length, targets, contextual, generator.choice((0, 0, 1, 64, 100, 1000))


def seen_by(length: int, targets: int, contextual: int, window: int) -> torch.Tensor:
    mask = ProductionMask(1.0, 1.0, None, torch.tensor([targets]), window, contextual)
    return visible(mask, 0, length, torch.device("cpu"))


@pytest.mark.parametrize("seed", range(20))
def test_a_row_sees_one_interval_and_itself(library, seed):
    length, targets, contextual, window = drawn(seed)
    expected, out = seen_by(length, targets, contextual, window), (ctypes.c_int * 2)()
    column = torch.arange(length)
    for row in range(length):
        library.row(row, length - targets, contextual, window, out)
        actual = (column >= out[0]) & (column < out[1]) | (column == row)
        assert torch.equal(actual, expected[row]), (row, list(out))


@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.parametrize("rows", [64, 128, 192])
@pytest.mark.parametrize("seed", range(20))
def test_a_tile_visits_the_blocks_that_it_sees_and_no_other(library, seed, rows, columns):
    length, targets, contextual, window = drawn(seed)
    expected, out = seen_by(length, targets, contextual, window), (ctypes.c_int * 64)()
    for begin in range(0, length, rows):
        of_tile = expected[begin : begin + rows]
        count = library.tile(
            begin, begin + of_tile.size(0), length - targets, contextual, window, columns, out
        )
        blocks = [x.any().item() for x in of_tile.split(columns, 1)]
        assert out[4 : 4 + count] == [number for number, seen in enumerate(blocks) if seen]
        # The diagonal is apart.
        outside = of_tile.clone()
        outside[:, out[0] : out[1]] = False
        outside.diagonal(begin).fill_(False)
        assert of_tile[:, out[2] : out[3]].all()
        assert not outside.any()
