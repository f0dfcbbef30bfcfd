"""Triton's interpreter with two changes: fewer searches, and products that have the same bits everywhere.

Before a launch the interpreter replaces the functions of `triton.language`, and restores them after it. For
each call of a function inside the kernel it goes through the language again, and finds nothing to replace: a
third of the time of a kernel made of functions.

It multiplies blocks with NumPy's BLAS. On some CPUs the bits of an element of the product depend on its place
in the block, which no GPU does: two calls that cut the same rows into other blocks would differ.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
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


def placeless(dot: Callable[..., Any]) -> Callable[..., Any]:
    """`InterpreterBuilder.create_dot`, with sums whose order depends on their length alone."""

    @functools.wraps(dot)
    def placeless_dot(
        builder: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any
    ) -> Any:
        if any(x.dtype.is_fp8() for x in (a, b)):
            return dot(builder, a, b, d, input_precision, max_num_imprecise_acc)
        # einsum chooses the order by the strides.
        left, right = (np.ascontiguousarray(x.data, d.data.dtype) for x in (a, b))
        # A GPU says nothing of NaN and Inf either.
        with np.errstate(all="ignore"):
            product = np.einsum("...ik,...kj->...ij", left, right) + d.data
        return interpreter.TensorHandle(product, d.dtype.scalar)

    return placeless_dot


def multiply_without_places() -> None:
    """Exchange the interpreter's products for the rest of the process."""
    builder = interpreter.InterpreterBuilder
    if not hasattr(builder.create_dot, "__wrapped__"):
        builder.create_dot = placeless(builder.create_dot)
