"""The options of live models about their inputs: the mask of padding, garbage in it, and dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from parity.base.errors import UserError, check_names, is_whole
from parity.case.plan import Arrays

Mask = Callable[[Arrays], np.ndarray]
Poison = Callable[[Arrays, int], Arrays]
Dynamic = Mapping[str, Mapping[int, int]]

GARBAGE_SCALE = 1e3
"""Standard deviation of garbage in floating-point inputs."""


def checked_mask(option: str | Mask | None, arrays: Arrays) -> Mask | None:
    """The function of the option `mask`. Raises `UserError`."""
    if option is None:
        return None
    if isinstance(option, str):
        (name,) = check_names("mask", [option], arrays)
        function: Mask = lambda arrays: np.asarray(arrays[name]) != 0  # noqa: E731
    elif callable(option):
        function = option
    else:
        raise UserError("mask", option, "is no name and no function", "give the name of an input")
    mask = function(arrays)
    batch = next(iter(arrays.values())).shape[:1]
    if not (
        isinstance(mask, np.ndarray) and mask.dtype == bool and mask.ndim == 2 and mask.shape[:1] == batch
    ):
        shape = getattr(mask, "shape", type(mask).__name__)
        raise UserError(
            "mask", shape, "is no (B, N) mask of the batch", "give one boolean a row and position"
        )
    if mask.all():
        raise UserError("mask", option, "masks nothing", "give inputs with padding, or leave mask out")
    if not mask.any():
        raise UserError("mask", option, "masks every position", "give True where a position is valid")
    return function


def checked_poison(option: Any, mask: Mask | None, arrays: Arrays) -> Poison | None:
    """The function of the option `poison`. Raises `UserError`."""
    if option is None or callable(option):
        return option
    if isinstance(option, str):
        raise UserError("poison", option, "is a text", f"give a sequence, such as ({option!r},)")
    if mask is None:
        raise UserError("poison", option, "needs a mask", "name the input that tells the padding in mask")
    names, places = check_names("poison", option, arrays), mask(arrays)
    for name in names:
        if arrays[name].shape[:2] != places.shape:
            raise UserError(
                "poison",
                name,
                f"has the shape {arrays[name].shape}, not {places.shape} first",
                "name another",
            )

    def poisoned(arrays: Arrays, seed: int) -> Arrays:
        rng, padding = np.random.default_rng(seed), ~mask(arrays)
        changed = dict(arrays)
        for name in names:
            changed[name] = np.array(arrays[name])
            changed[name][padding] = _garbage(arrays[name], rng)[padding]
        return changed

    return poisoned


def _garbage(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Values of an array's shape: any number, or any of the integers in its range."""
    if array.dtype.kind == "f":
        return (GARBAGE_SCALE * rng.standard_normal(array.shape)).astype(array.dtype)
    if array.dtype.kind == "b":
        return rng.integers(0, 2, array.shape).astype(bool)
    return rng.integers(array.min(), array.max(), array.shape, array.dtype, endpoint=True)


def checked_dynamic(option: Dynamic | None, arrays: Arrays) -> Dynamic:
    """The option `dynamic`. Raises `UserError`."""
    if option is None:
        return {}
    if not isinstance(option, Mapping) or not all(isinstance(axes, Mapping) for axes in option.values()):
        raise UserError("dynamic", option, "has no axes by input", "write {input: {axis: least size}}")
    check_names("dynamic", option, arrays)
    for name, axes in option.items():
        shape = arrays[name].shape
        for axis, least in axes.items():
            if not (is_whole(axis) and 0 <= axis < len(shape)):
                raise UserError(
                    f"dynamic[{name!r}]", repr(axis), f"is no axis of {shape}", f"use 0 to {len(shape) - 1}"
                )
            field = f"dynamic[{name!r}][{axis}]"
            if not (is_whole(least) and 1 <= least <= shape[axis]):
                raise UserError(
                    field, least, "is no least size", f"give 1 to {shape[axis]}, the input's size"
                )
    return option


def cut(arrays: Arrays, dynamic: Dynamic, size_of: Callable[[int, int], int]) -> Arrays:
    """The beginnings of the inputs: dynamic axes have a size between the least and the largest."""
    beginnings = {}
    for name, array in arrays.items():
        places = [slice(None)] * array.ndim
        for axis, least in dynamic.get(name, {}).items():
            places[axis] = slice(size_of(least, array.shape[axis]))
        beginnings[name] = np.ascontiguousarray(array[tuple(places)])
    return beginnings
