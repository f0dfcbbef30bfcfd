"""The production STU in all its forms: dense, jagged, with fused attention, and with whole layers fused."""

from __future__ import annotations

from cases.stu.dense import DenseSTU
from cases.stu.fused import STUFused, STUWholeLayers
from cases.stu.jagged import STUJagged
from configs import CaseConfig
from parity.case import Form, NoForm

_FORMS: dict[str, type[STUJagged | STUFused]] = {
    "jagged": STUJagged,
    "fused": STUFused,
    "whole_layers": STUWholeLayers,
}


class STUCase(DenseSTU):
    """Contextual features, histories and targets in, a state for each target out."""

    def __init__(self, config: CaseConfig) -> None:
        super().__init__(config)
        self.forms = () if self.model.quantised else tuple(_FORMS)

    def form(self, name: str) -> Form:
        if name not in _FORMS:
            raise NoForm(f"{self.name} has no {name} form")
        if self.model.quantised:
            raise NoForm(f"{self.name} quantises products, and its {name} form has no quantised product")
        return _FORMS[name](self.config)
