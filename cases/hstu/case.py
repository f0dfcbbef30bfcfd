"""Research HSTU in all its forms: dense, jagged, and with fused attention."""

from __future__ import annotations

from cases.hstu.dense import DenseHSTU
from cases.hstu.fused import HSTUFused
from cases.hstu.jagged import HSTUJagged
from cases.hstu.streaming import HSTUStreams
from configs import CaseConfig
from parity.base.errors import UserError
from parity.case import Form, NoForm

_FORMS: dict[str, type[HSTUJagged | HSTUFused]] = {"jagged": HSTUJagged, "fused": HSTUFused}


class HSTUCase(DenseHSTU):
    """Sequences of items in, a state for each position, the latest state, and similarities out."""

    def __init__(self, config: CaseConfig) -> None:
        super().__init__(config)
        self.forms = tuple(name for name in _FORMS if self._has(name))

    def _has(self, name: str) -> bool:
        try:
            self.form(name)
        except NoForm:
            return False
        return True

    def form(self, name: str) -> Form:
        if name not in _FORMS:
            raise NoForm(f"{self.name} has no {name} form")
        if self.model.quantised:
            raise NoForm(f"{self.name} quantises products, and its {name} form has no quantised product")
        return _FORMS[name](self.config)

    def streams(self) -> HSTUStreams:
        if self.model.normalization == "softmax_rel_bias":
            raise UserError(
                "stream", self.name, "has softmax attention, over positions to come", "give one of rel_bias"
            )
        return HSTUStreams(self.model)
