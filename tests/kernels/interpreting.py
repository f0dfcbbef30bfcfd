"""Triton's interpreter, without the search for functions to replace in every function that a kernel calls.

Before a launch the interpreter replaces the functions of `triton.language`, and restores them after it. For
each call of a function inside the kernel it goes through the language again, and finds nothing to replace: a
third of the time of a kernel made of functions.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def patched_once(patch: Callable[[Callable], Any]) -> Callable[[Callable], Any]:
    """`interpreter._patch_lang`, which replaces nothing where a launch has replaced everything."""

    @functools.wraps(patch)
    def patch_at_launch(fn: Callable) -> Any:
        names = (value for value in fn.__globals__.values() if inspect.ismodule(value))
        languages = [value for value in names if value is tl or value is tl.core]
        # One function stands for all: they are replaced and restored together.
        if languages and not any(tl.core.is_builtin(language.load) for language in languages):
            return interpreter._LangPatchScope()
        return patch(fn)

    return patch_at_launch


def patch_once_a_launch() -> None:
    """Exchange the interpreter's own function for the rest of the process; other versions keep theirs."""
    has_scopes = hasattr(interpreter, "_LangPatchScope")
    if has_scopes and not hasattr(interpreter._patch_lang, "__wrapped__"):
        interpreter._patch_lang = patched_once(interpreter._patch_lang)
