"""Small tables and stores for tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from parity.base.sealed import read_sealed, sealed
from tables.store import MANIFEST, By, Source, write

SHAPES = {
    "item": (101, 9, torch.float16),
    "user": (7, 16, torch.bfloat16),
    "category": (33, 5, torch.float32),
}


def numbers(
    shapes: dict[str, tuple[int, int, torch.dtype]] = SHAPES, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Random tables of these shapes and types."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(rows, columns, generator=draw).to(dtype)
        for name, (rows, columns, dtype) in shapes.items()
    }


def store(folder: Path, tables: dict[str, torch.Tensor], ranks: int = 1, by: By = "rows") -> Path:
    """A store of these tables."""
    write(folder, [Source.of(name, rows) for name, rows in tables.items()], ranks, by)
    return folder


def relabel(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a sealed file, seal included."""
    content = read_sealed(path)
    change(content)
    path.write_bytes(sealed(json.loads(json.dumps(content))))


def manifest_of(folder: Path) -> dict[str, Any]:
    """The content of a store's manifest."""
    return read_sealed(folder / MANIFEST)
