"""DLRMv3 in all its forms: dense, jagged, with fused attention, and with whole layers fused."""

from __future__ import annotations

from cases.dlrmv3.dense import DenseDLRMv3
from cases.dlrmv3.fused import DLRMv3Fused, DLRMv3WholeLayers
from cases.dlrmv3.jagged import DLRMv3Jagged
from parity.case import Form, NoForm

_FORMS: dict[str, type[DLRMv3Jagged | DLRMv3Fused]] = {
    "jagged": DLRMv3Jagged,
    "fused": DLRMv3Fused,
    "whole_layers": DLRMv3WholeLayers,
}


class DLRMv3Case(DenseDLRMv3):
    """Rows of the embedding tables in, a prediction for each task and candidate out."""

    forms = tuple(_FORMS)

    def form(self, name: str) -> Form:
        if name not in _FORMS:
            raise NoForm(f"{self.name} has no {name} form")
        return _FORMS[name](self.config)
