"""Kernels with a fault."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def mutated(
    module: ModuleType, old: str, new: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    """A copy of a kernel's module in whose source `old` reads `new`. Triton reads a kernel's file, hence the
    one in `folder`.
    """
    source = Path(module.__file__).read_text()
    assert old in source, f"{module.__name__} has no {old!r}"
    name = f"mutated_{module.__name__.rpartition('.')[2]}"
    path = folder / f"{name}.py"
    path.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location(name, path)
    copy = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, copy)
    spec.loader.exec_module(copy)
    return copy
