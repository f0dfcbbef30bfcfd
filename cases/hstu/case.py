"""Research HSTU in all its forms: dense, jagged, and with fused attention."""

from __future__ import annotations

from cases.hstu.dense import DenseHSTU
from cases.hstu.fused import HSTUFused
from cases.hstu.jagged import HSTUJagged
from cases.hstu.streaming import HSTUStreams
from parity.base.errors import UserError
from parity.case import Form, NoForm

_FORMS: dict[str, type[HSTUJagged | HSTUFused]] = {"jagged": HSTUJagged, "fused": HSTUFused}


class HSTUCase(DenseHSTU):
    """Sequences of items in, a state for each position, the latest state, and similarities out."""

    forms = tuple(_FORMS)

    def form(self, name: str) -> Form:
        if name not in _FORMS:
            raise NoForm(f"{self.name} has no {name} form")
        return _FORMS[name](self.config)

    def streams(self) -> HSTUStreams:
        if self.model.normalization == "softmax_rel_bias":
            raise UserError(
                "--stream", self.name, "has softmax attention, over positions to come", "give one of rel_bias"
            )
        return HSTUStreams(self.model)
