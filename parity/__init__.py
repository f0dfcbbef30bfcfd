"""The engine: case -> inputs -> captures -> verdict -> report.

A model comes in as a `Case`; see `parity.case`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity.case import Batches, Case, CaseReference, Form, NoForm, PlannedBatch, load_case

__all__ = ["Batches", "Case", "CaseReference", "Form", "NoForm", "PlannedBatch", "load_case"]


def __getattr__(name: str) -> Any:
    # NumPy and pydantic take a while to import, and most modules of the engine need no case.
    if name in __all__:
        from parity import case

        return getattr(case, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
