"""The engine: case -> inputs -> captures -> verdict -> report.

`parity.compare` compares two models. Whatever needs more is a `Case`; see `parity.case`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity.api import ParityError, Result, check, compare
    from parity.base.errors import UserError
    from parity.case import (
        Batches,
        Case,
        CaseReference,
        Form,
        From,
        ModelPair,
        NoForm,
        PlannedBatch,
        load_case,
    )

__all__ = [
    "Batches",
    "Case",
    "CaseReference",
    "Form",
    "From",
    "ModelPair",
    "NoForm",
    "ParityError",
    "PlannedBatch",
    "Result",
    "UserError",
    "check",
    "compare",
    "load_case",
]
_HOMES = {"UserError": "parity.base.errors"} | dict.fromkeys(
    ("ParityError", "Result", "check", "compare"), "parity.api"
)


def __getattr__(name: str) -> Any:
    # NumPy, PyTorch and pydantic take a while to import, and most modules of the engine need no case.
    if name == "case":
        return importlib.import_module("parity.case")
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "parity.case")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
