"""Runs of a port that fail with other sizes than those of its trace: the place in the port's code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import nvtripy as tp
import torch

from parity.base.trees import dotted, leaves
from parity.runners.base import FailsWithSizes

LISTED = 4
"""Number of sizes and modules that a text lists."""


def failing_with_sizes(
    trace: Callable[[], Any],
    modules: Mapping[str, tp.Module],
    arguments: Any,
    sizes: Mapping[str, tuple[int, ...]],
) -> FailsWithSizes | None:
    """The error of a run whose trace with fixed sizes fails, too; None if that trace is fine.

    An executable's error has no place in the port's code. The compiler's has one.

    Args:
        trace: Compiles the port with the sizes of the run.
        modules: The port's modules, by path.
        arguments: Tensors of the run on the host, nested.
        sizes: Shapes of the tensors of the first trace, by dotted path.
    """
    try:
        trace()
    except tp.TripyException as error:
        return FailsWithSizes(error, _other_sizes(arguments, sizes), lambda *place: _owners(modules, *place))
    return None


def _other_sizes(arguments: Any, sizes: Mapping[str, tuple[int, ...]]) -> str:
    """The shapes that differ from those of the first trace, in words."""
    tensors = {dotted(path): leaf for path, leaf in leaves(arguments) if isinstance(leaf, torch.Tensor)}
    other = [
        f"{name} of {_in_words(tensor.shape)} in place of {_in_words(sizes[name])}"
        for name, tensor in tensors.items()
        if name in sizes and tuple(tensor.shape) != sizes[name]
    ]
    return ", ".join(other[:LISTED]) + (f" and {len(other) - LISTED} more" if len(other) > LISTED else "")


def _in_words(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def _owners(modules: Mapping[str, tp.Module], file: Path, line: int) -> str:
    """Paths of the modules whose class has a line of code, in words; empty for code of no module."""
    paths = [path for path, module in modules.items() if _has_line(type(module), file, line)]
    more = f" and {len(paths) - LISTED} more" if len(paths) > LISTED else ""
    return ", ".join(path or "the model itself" for path in paths[:LISTED]) + more


def _has_line(kind: type, file: Path, line: int) -> bool:
    functions = (value for base in kind.__mro__ for value in vars(base).values())
    codes = (code for function in functions if (code := getattr(function, "__code__", None)))
    own = (code for code in codes if Path(code.co_filename) == file)
    return any(line in {number for *_, number in code.co_lines()} for code in own)
