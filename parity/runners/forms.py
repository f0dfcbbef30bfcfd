"""Runners of a case's other forms: the form of a runner, and the modules that it computes inside others."""

from __future__ import annotations

from collections.abc import Mapping

from parity.case import Case, Form, NoForm
from parity.runners.base import Unavailable
from parity.runners.registry import REGISTRY

FORMS = {name: entry.form for name, entry in REGISTRY.items() if entry.form}
"""Names of forms by runner."""


def form_of(case: Case, runner: str) -> Form:
    """The form that a runner runs. Raises `Unavailable` with the reason where the case has none."""
    try:
        return case.form(FORMS[runner])
    except NoForm as error:
        raise Unavailable(str(error)) from error


def computed_inside(case: Case, runner: str) -> Mapping[str, str]:
    """Classes of the case's reference that a runner computes inside other modules, with the reasons."""
    return case.form(FORMS[runner]).computed_inside if runner in FORMS else {}


def appends_alone(case: Case, runner: str) -> bool:
    """Whether a runner that appends runs the modules of an append alone."""
    return runner not in FORMS or case.form(FORMS[runner]).appends_alone
