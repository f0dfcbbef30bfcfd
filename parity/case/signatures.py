"""The parameters of a case's own methods, against those that the engine passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from parity.base.errors import UserError
from parity.case.model import Case

_METHODS = {
    name: inspect.signature(function)
    for name, function in inspect.getmembers(Case, inspect.isfunction)
    if not name.startswith("_")
}
"""The methods of every case with the parameters that the engine passes, the case itself first."""


def require_signatures(case: Case) -> None:
    """Refuse a method of a case that does not take what the engine passes, before any runner starts.

    Raises:
        UserError: There is such a method, or something else of a method's name.
    """
    for name, declared in _METHODS.items():
        method = getattr(case, name)
        if getattr(method, "__func__", None) is getattr(Case, name):
            continue
        own = f"{type(case).__qualname__}.{name}"
        fix = f"write def {name}({', '.join(declared.parameters)}), or give it another name"
        if not callable(method):
            raise UserError("case", own, f"is of type {type(method).__name__}, and no method", fix)
        parameters = _parameters(method)
        if parameters is not None and not _takes(parameters, declared):
            passed = ", ".join(list(declared.parameters)[1:])
            raise UserError("case", f"{own}{parameters}", f"is called as {name}({passed})", fix)


def _parameters(method: Callable[..., Any]) -> inspect.Signature | None:
    """The parameters of a call; None where Python does not know them."""
    try:
        # A wrapper may pass others to the function that it wraps.
        return inspect.signature(method, follow_wrapped=False)
    except ValueError:
        # A function without a parameter is bound to the case. Others, such as a cached one, tell nothing.
        is_plain = inspect.ismethod(method) and inspect.isfunction(method.__func__)
        return inspect.signature(method.__func__) if is_plain else None
    except TypeError:
        return None


def _takes(parameters: inspect.Signature, declared: inspect.Signature) -> bool:
    """Whether a call as the engine makes it fits."""
    passed = list(declared.parameters.values())[1:]
    named = [p for p in passed if p.kind is p.POSITIONAL_OR_KEYWORD]
    needed = [p.name for p in named if p.default is p.empty]
    # Those with a default value are passed by name.
    by_name = {p.name: None for p in named if p.default is not p.empty}
    takes_more = any(p.kind is p.VAR_KEYWORD for p in passed)
    # The case passes other arguments to itself, under its own names.
    bind = parameters.bind_partial if takes_more else parameters.bind
    try:
        bind(*needed, **by_name)
    except TypeError:
        return False
    return True
