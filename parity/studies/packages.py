"""The packages that hold the code of a case."""

from __future__ import annotations

import importlib
from pathlib import Path

from parity.case import Case


def packages_of(case: Case) -> set[str]:
    """Top packages of a case's code: the engine's, the case's own, and its `packages`."""
    return {"parity", case.reference.target.split(":")[0].split(".")[0], *case.packages}


def path_of(package: str) -> Path:
    """Folder of a top package, or the file of a top module."""
    file = Path(importlib.import_module(package).__file__ or "")
    return file.parent if file.name == "__init__.py" else file
