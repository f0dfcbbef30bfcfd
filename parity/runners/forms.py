"""Runners of a case's other forms: which form a runner runs, and which modules it computes inside others."""

from __future__ import annotations

from collections.abc import Mapping

from parity.case import Case, Form, NoForm
from parity.runners.base import Unavailable

FORMS = {"torch_jagged": "jagged", "torch_fused": "fused", "tripy_jagged": "fused"}
"""Names of forms by runner."""


def form_of(case: Case, runner: str) -> Form:
    """The form that a runner runs. Raises `Unavailable` with the reason where the case has none."""
    try:
        return case.form(FORMS[runner])
    except NoForm as error:
        raise Unavailable(str(error)) from error


def computed_inside(case: Case, runner: str) -> Mapping[str, str]:
    """Classes of the case's reference that a runner computes inside other modules, each with the reason."""
    return case.form(FORMS[runner]).computed_inside if runner in FORMS else {}
