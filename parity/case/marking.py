"""The decorator `parity.case`, which makes pytest's items of a case's modules and precisions."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from parity.base.errors import UserError, from_here, require_sequence

MARK = "parity_mark"
"""Attribute of a decorated function or class."""


@dataclass(frozen=True)
class CaseMark:
    """The request of a decorated function: its case's precisions and judged runners, by name."""

    precisions: tuple[str, ...]
    runners: tuple[str, ...]


@functools.partial(from_here, name="parity.case")
def mark(
    make: Callable[[], Any] | None = None,
    *,
    precisions: Sequence[str] = ("fp32", "fp16"),
    runners: Sequence[str] = ("tripy",),
) -> Any:
    """Make one item of pytest for each module and precision of a case.

        @parity.case(precisions=("fp32",))
        def test_port():
            return parity.ModelPair(torch_model, TripyModel, inputs={"x": x})

    The first item runs the case. Items of modules behind the culprit are skipped.

    Args:
        make: A function without arguments that returns a `Case`, or a class of cases.
        precisions: Names of precisions.
        runners: Names of the judged runners.

    Returns:
        The decorator, or the decorated function or class. It raises a `UserError` where pytest runs it as an
        ordinary test: that would pass whatever the port computes.

    Raises:
        UserError: Something else is decorated.
    """
    for field, names, known in (("precisions", precisions, ("fp32",)), ("runners", runners, ("tripy",))):
        if isinstance(names, str):
            require_sequence(field, names, known)
    marked = CaseMark(tuple(precisions), tuple(runners))

    def decorate(function: Callable[[], Any]) -> Callable[[], Any]:
        if not callable(function):
            raise UserError(
                "parity.case",
                function,
                "is no function and no class",
                "decorate a function that returns a case",
            )
        decorated = function if isinstance(function, type) else _not_as_a_test(function)
        setattr(decorated, MARK, marked)
        return decorated

    return decorate if make is None else decorate(make)


def _not_as_a_test(make: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which refuses to be a test that judges nothing."""

    @functools.wraps(make)
    def guarded(*arguments: Any, **keywords: Any) -> Any:
        name = getattr(make, "__name__", "")
        # The name of the running test, `file::class::function[parameters] (call)`.
        running = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
        if name and running.partition("[")[0].rpartition("::")[2] == name:
            raise UserError(
                "parity.case",
                name,
                "runs as an ordinary test of pytest, which judges nothing",
                "decorate a function outside of classes, and load the plugin: pytest -p parity.pytest_plugin",
            )
        return make(*arguments, **keywords)

    return guarded
