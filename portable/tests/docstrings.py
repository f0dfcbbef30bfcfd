"""Finds the code examples in the docstrings of the installed nvtripy, and what they run with."""

from __future__ import annotations

import ast
import importlib.util
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

_MARKER = ".. code-block:: python"


@dataclass(frozen=True)
class Example:
    """One code block: where it stands, its lines, and a name for test reports."""

    name: str
    code: str
    needs_plugins: bool


def package_directory() -> Path:
    """The installed nvtripy's directory, found without importing it."""
    return Path(importlib.util.find_spec("nvtripy").origin).parent


def examples() -> list[Example]:
    """All examples, in the order of files and lines."""
    root = package_directory()
    actual = []
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _MARKER in node.value:
                for number, code in enumerate(_blocks(node.value)):
                    name = f"{path.relative_to(root)}:{node.lineno}#{number}"
                    actual.append(Example(name, code, needs_plugins="tp.plugin" in code))
    return actual


def _blocks(docstring: str) -> Iterator[str]:
    lines = docstring.expandtabs().splitlines()
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        if not line.strip().startswith(_MARKER):
            continue
        indent = len(line) - len(line.lstrip())
        block = []
        while index < len(lines) and (not lines[index].strip() or _indent(lines[index]) > indent):
            block.append(lines[index])
            index += 1
        code = textwrap.dedent(
            "\n".join(line for line in block if not line.strip().startswith((":linenos:", ":caption:")))
        )
        yield code.strip("\n")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


class _CupyArray(np.ndarray):
    """A NumPy array with CuPy's `get`."""

    def get(self) -> np.ndarray:
        return np.asarray(self)


def _wrapped(function: Any) -> Any:
    return lambda *args, **kwargs: np.asarray(function(*args, **kwargs)).view(_CupyArray)


# What the examples use of CuPy, on host memory: where there is no GPU, that is where "gpu" tensors are.
host_cupy = SimpleNamespace(
    array=_wrapped(np.array),
    array_equal=np.array_equal,
    ascontiguousarray=_wrapped(np.ascontiguousarray),
    cumsum=_wrapped(np.cumsum),
    from_dlpack=_wrapped(np.from_dlpack),
    repeat=_wrapped(np.repeat),
)


def run(example: Example) -> None:
    """Runs an example; its assertions must hold.

    Where there is no GPU, the two examples that put a PyTorch module on "cuda" get it on the CPU.
    """
    import nvtripy as tp
    import torch

    if torch.cuda.is_available():
        code, cupy = example.code, pytest.importorskip("cupy") if "cp." in example.code else None
    else:
        code, cupy = example.code.replace('torch.device("cuda")', 'torch.device("cpu")'), host_cupy
    exec(
        compile(code, example.name, "exec"),
        {"tp": tp, "np": np, "cp": cupy, "torch": torch, "__name__": "example"},
    )
