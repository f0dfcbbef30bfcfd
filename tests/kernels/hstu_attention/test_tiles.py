"""The Hopper kernel's arithmetic of visible columns, compiled for the CPU, against the mask's definition."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
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
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


def compiled(folder: Path, old: str = "", new: str = "") -> ctypes.CDLL:
    """The arithmetic as a library; in its source, `old` reads `new`."""
    source = (SOURCE.parent / "tiles.cuh").read_text()
    assert old in source
    (folder / "tiles.cuh").write_text(source.replace(old, new) if old else source)
    (folder / "shim.cpp").write_text(SHIM)
    plain = ["-D__host__=", "-D__device__=", "-std=c++17", "-O1", "-shared", "-fPIC"]
    target = folder / "tiles.so"
    command = [COMPILER, *plain, str(folder / "shim.cpp"), "-o", str(target)]
    subprocess.run(command, check=True, timeout=120)
    return ctypes.CDLL(str(target))


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ctypes.CDLL:
    return compiled(tmp_path_factory.mktemp("tiles"))


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


def wrong_rows(library: ctypes.CDLL, seed: int) -> list[int]:
    """Rows whose interval, with the diagonal, is not what they see."""
    length, targets, contextual, window = drawn(seed)
    expected, out = seen_by(length, targets, contextual, window), (ctypes.c_int * 2)()
    column, wrong = torch.arange(length), []
    for row in range(length):
        library.row(row, length - targets, contextual, window, out)
        actual = (column >= out[0]) & (column < out[1]) | (column == row)
        if not torch.equal(actual, expected[row]):
            wrong.append(row)
    return wrong


def wrong_tiles(library: ctypes.CDLL, seed: int, rows: int, columns: int) -> list[int]:
    """First rows of tiles that visit other blocks than they see, or have wrong limits."""
    length, targets, contextual, window = drawn(seed)
    expected, out = seen_by(length, targets, contextual, window), (ctypes.c_int * 64)()
    wrong = []
    for begin in range(0, length, rows):
        tile = expected[begin : begin + rows]
        end = begin + tile.size(0)
        count = library.tile(begin, end, length - targets, contextual, window, columns, out)
        blocks = [number for number, seen in enumerate(tile.split(columns, 1)) if seen.any()]
        # The diagonal is apart.
        outside = tile.clone()
        outside[:, out[0] : out[1]] = False
        outside.diagonal(begin).fill_(False)
        if out[4 : 4 + count] != blocks or outside.any() or not tile[:, out[2] : out[3]].all():
            wrong.append(begin)
    return wrong


@pytest.mark.parametrize("seed", range(20))
def test_a_row_sees_one_interval_and_itself(library, seed):
    assert wrong_rows(library, seed) == []


@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("seed", range(20))
def test_a_tile_visits_the_blocks_that_it_sees_and_no_other(library, seed, rows, columns):
    assert wrong_tiles(library, seed, rows, columns) == []


FAULTS = {
    "the window's edge": (
        "const int far = position - mask.window;",
        "const int far = position - mask.window + 1;",
    ),
    "targets see each other": ("position = position > last ? last : position;", ""),
    "contextual rows see targets": ("return {0, first_target};", "return {0, first_target + 1};"),
    "contextual rows count as many": ("mask.contextual - 1 : 0", "mask.contextual : 0"),
    "a block too few": (
        "blocks.middle = (some.end + columns - 1) / columns;",
        "blocks.middle = some.end / columns;",
    ),
    "the first block left out": (
        "blocks.begin = some.begin / columns;",
        "blocks.begin = some.begin / columns + 1;",
    ),
    "a block too many": ("some.end + columns - 1", "some.end + columns"),
    "a cut block taken whole": (
        "return {{first.begin, last.end}, {last.begin, first.end}};",
        "return {{first.begin, last.end}, {first.begin, last.end}};",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault, tmp_path):
    faulty = compiled(tmp_path, *FAULTS[fault])
    assert any(wrong_rows(faulty, seed) or wrong_tiles(faulty, seed, 128, 64) for seed in range(60))
