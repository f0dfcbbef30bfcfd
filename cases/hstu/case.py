"""Research HSTU in all its forms: dense, jagged, and with fused attention."""

from __future__ import annotations

from cases.hstu.dense import DenseHSTU
from cases.hstu.fused import HSTUFused
from cases.hstu.jagged import HSTUJagged
from parity.case import Form, NoForm

_FORMS: dict[str, type[HSTUJagged | HSTUFused]] = {"jagged": HSTUJagged, "fused": HSTUFused}


class HSTUCase(DenseHSTU):
    """Sequences of items in, a state for each position, the latest state, and similarities out."""

    forms = tuple(_FORMS)

    def form(self, name: str) -> Form:
        if name not in _FORMS:
            raise NoForm(f"{self.name} has no {name} form")
        return _FORMS[name](self.config)
