"""The packages that hold the code of a case."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path

from parity.base.code import is_library, spec_of
from parity.case import Case

ENGINE = __name__.partition(".")[0]
_TRIPY = frozenset(("nvtripy", "mlir_tensorrt", "tensorrt", "tripy_portable"))
"""Tripy and what it runs on, which may be no installed packages."""


def packages_of(case: Case) -> set[str]:
    """Top packages of a case's code: the engine's, the case's own, and its `packages`.

    A case that names none has the packages that its own imports, directly or not, without installed ones.
    """
    own = case.reference.target.split(":")[0].split(".")[0]
    return {ENGINE, own, *(case.packages or _imported_by(own))}


def path_of(package: str) -> Path:
    """Folder of a top package, or the file of a top module; an empty path where there is none."""
    spec = spec_of(package)
    if spec is None or not (spec.submodule_search_locations or spec.has_location):
        return Path()
    return Path([*(spec.submodule_search_locations or ()), spec.origin or ""][0])


def _imported_by(package: str) -> set[str]:
    """Packages of the user that the sources of a package import, directly or not."""
    found, waiting = {package}, [package]
    while waiting:
        place = path_of(waiting.pop())
        for source in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            new = {name for name in _imports(source) if name not in found and _is_users(name)}
            found |= new
            waiting += sorted(new)
    return found


def _imports(source: Path) -> Iterator[str]:
    """Top packages that a file imports; none of a file that is no Python."""
    with contextlib.suppress(SyntaxError, ValueError):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                yield node.module.partition(".")[0]


def _is_users(name: str) -> bool:
    """Whether a top package is neither the engine, nor Tripy, nor installed, nor Python's own."""
    if name == ENGINE or name in _TRIPY:
        return False
    place = path_of(name)
    return place != Path() and not is_library(str(place))
