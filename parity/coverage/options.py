"""Choices of the options of cases."""

from __future__ import annotations

from collections.abc import Iterable

from parity.case import Case
from parity.coverage.questions import Coverage, Kind, Question


def options_of(cases: Iterable[Case]) -> Coverage:
    """The options of some cases with the choices that they take."""
    coverage = Coverage()
    for case in cases:
        for name, option in case.options().items():
            question = Question(kind=Kind.OPTION, place=name, answers=option.choices)
            coverage.add(question, [option.value])
    return coverage
