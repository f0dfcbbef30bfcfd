"""The kernel that reads rows in several memories, interpreted: the rows of the table bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from tables.interface import Table
from tables.peer import _Addresses
from tests.kernels.marks import needs_triton
from tests.locations import ROOT

SHARDS = {
    "one": ("float16", 16, (40,)),
    "of the benchmark's width": ("float16", 512, (30, 20)),
    "odd columns, three shards": ("bfloat16", 9, (7, 5, 3)),
    "more columns than a program has": ("float32", 3000, (3, 4)),
    "not at multiples of 16 bytes": ("float16", 5, (1, 3, 2)),
}


def read(name: str) -> bool:
    """Whether all rows of a table, in any order and some of them twice, are its own."""
    kind, columns, sizes = SHARDS[name]
    dtype, draw = getattr(torch, kind), torch.Generator().manual_seed(0)
    whole = torch.randn(sum(sizes), columns, generator=draw).to(dtype)
    whole[0, :2] = torch.tensor([float("nan"), -0.0])
    if name.startswith("not"):
        parts = whole.split(list(sizes))
    else:
        parts = [part.clone() for part in whole.split(list(sizes))]
    ids = torch.cat([torch.arange(len(whole)), torch.randint(len(whole), (37,), generator=draw)]).flip(0)
    addresses = _Addresses.of(parts, torch.device("cpu"))
    rows = addresses.read(Table("item", len(whole), columns, dtype), ids)
    empty = addresses.read(Table("item", len(whole), columns, dtype), ids[:0])
    words = torch.int32 if dtype is torch.float32 else torch.int16
    return torch.equal(rows.view(words), whole[ids].view(words)) and empty.shape == (0, columns)


@needs_triton
def test_rows_are_equal_bit_for_bit():
    # Triton decides between compiling and interpreting when it is imported.
    program = f"import json; from {__name__} import SHARDS, read; print(json.dumps([*map(read, SHARDS)]))"
    paths = str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert json.loads(ended.stdout) == [True] * len(SHARDS)


@pytest.mark.parametrize("name", ["one", "of the benchmark's width"])
def test_aligned_shards_are_read_in_the_widest_steps(name):
    _, columns, sizes = SHARDS[name]
    parts = [torch.zeros(rows, columns, dtype=torch.float16) for rows in sizes]
    assert all(part.data_ptr() % 16 == 0 for part in parts)
    assert _Addresses.of(parts, torch.device("cpu")).unit == 8
