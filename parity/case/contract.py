"""The types that the optional methods of a case have to return, checked before any runner starts.

A wrong one would raise later, in code of the engine, which names neither the method nor its fix.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch

from parity.base.errors import UserError
from parity.base.precision import dtype_name
from parity.base.trees import dotted, leaves
from parity.case.model import Case
from parity.case.options import Option
from parity.case.plan import Arrays, PlannedBatch
from parity.case.signatures import require_signatures
from parity.case.users_code import of_case


def require_case(case: Case) -> None:
    """Raises `UserError` for an option or a method without inputs that raises, or has another type.

    Also for a method with other parameters.
    """
    require_signatures(case)
    case.check_options()
    _call(
        case,
        "options",
        case.options,
        lambda result: _is_named(result) and all(isinstance(option, Option) for option in result.values()),
        "return a dictionary of parity.case.options.Option by name",
    )
    _call(case, "cannot_be_asked", case.cannot_be_asked, _is_told, "return a dictionary of reasons by answer")
    _call(case, "gaps", case.gaps, _is_told, "return a dictionary of reasons by the name of a class")
    _call(
        case,
        "boundaries",
        case.boundaries,
        lambda result: _is_named(result) and all(map(callable, result.values())),
        "return a dictionary of functions by the name of a class",
    )
    for module in _call(
        case, "port_modules", case.port_modules, _is_sequence, "return a list of import paths"
    ):
        _require_module(case, module)
    _require(case, "whole_outputs", case.whole_outputs, _is_sequence, "give a tuple of names of outputs")


def require_batch(case: Case, arrays: Arrays) -> None:
    """Raises `UserError` for a batch without a row.

    Also for a method that raises with the batch's inputs, or returns another type or shape.
    """
    with of_case(case, "validate"):
        case.validate(arrays)
    size = _call(
        case,
        "batch_size_of",
        lambda: case.batch_size_of(arrays),
        lambda result: isinstance(result, (int, np.integer)) and result >= 0,
        "return the number of rows",
    )
    if size == 0:
        # Nothing would be judged, and no multiple of it has a row.
        name = next((f".{name}" for name, array in arrays.items() if array.shape[:1] == (0,)), "")
        raise UserError(f"inputs{name}", "", "has no row", "give at least one row")
    _require_rows(case, arrays, size)
    _require_sizes(case, arrays, size)
    valid = _call(
        case,
        "valid_rows",
        lambda: case.valid_rows(arrays),
        _is_mapping,
        "return a dictionary of masks by the size of an axis",
    )
    for axis, mask in valid.items():
        fitting = isinstance(mask, np.ndarray) and mask.dtype == bool and mask.shape == (size, axis)
        if not fitting:
            raise UserError(
                f"valid_rows[{axis}]", _told(mask), "is no mask of it", f"return booleans ({size}, {axis})"
            )


def require_poisoned(case: Case, arrays: Arrays, poisoned: Arrays) -> None:
    """Raises `UserError` for arrays with garbage that are not those of the inputs."""
    fix = "return the same arrays from poison, with other values in their padding"
    if set(poisoned) != set(arrays):
        raise UserError("poison", ", ".join(poisoned), f"are not the inputs of {case.name}", fix)
    for name, array in arrays.items():
        if (poisoned[name].shape, poisoned[name].dtype) != (array.shape, array.dtype):
            raise UserError(f"poison.{name}", _told(poisoned[name]), f"is not {_told(array)}", fix)


def outputs_by_tap(case: Case, results: Any) -> Mapping[str, Any]:
    """The entry's results by tap name. Raises `UserError` where the case names them otherwise."""
    fix = f"return a dictionary of outputs by names such as {case.entry}.scores"
    return _call(
        case,
        "named_outputs",
        lambda: case.named_outputs(results),
        lambda named: _is_named(named) and all(name.startswith(f"{case.entry}.") for name in named),
        fix,
    )


def require_whole_outputs(case: Case, taps: Collection[str]) -> None:
    """Raises `UserError` where `whole_outputs` names no output. `taps` are the outputs by tap name."""
    outputs = [tap.removeprefix(f"{case.entry}.") for tap in taps]
    for name in case.whole_outputs:
        if name not in outputs:
            fix = f"name one of {', '.join(outputs)}"
            raise UserError("whole_outputs", name, f"is no output of {case.name}", fix)


def arguments_of(case: Case, arrays: Arrays) -> dict[str, Any]:
    """The entry's arguments. Raises `UserError` where they are no dictionary of names."""
    fix = "return a dictionary of arguments by name"
    return _call(case, "entry_arguments", lambda: case.entry_arguments(arrays), _is_named, fix)


def scale_of(case: Case, name: str, parameter: torch.Tensor) -> float | torch.Tensor | None:
    """The case's scale of a parameter. Raises `UserError` where it is none."""
    return _call(
        case,
        "weight_scale",
        lambda: case.weight_scale(name, parameter),
        lambda scale: scale is None or _is_scale(scale),
        f"return a finite number of 0 or more for {name}, or None",
    )


def values_of(case: Case, name: str, own: torch.Tensor) -> torch.Tensor | None:
    """The case's values of a parameter or a buffer. Raises `UserError` where they do not fit it."""
    return _call(
        case,
        "initial_values",
        lambda: case.initial_values(name, own),
        lambda values: values is None or _fits(values, own),
        f"return a tensor of shape {tuple(own.shape)} and type {dtype_name(own.dtype)} for {name}, or None",
    )


def elements_at_boundary(case: Case, function: Callable[[], Any]) -> np.ndarray:
    """The result of a function of `boundaries`. Raises `UserError` where it is no array of booleans."""
    return _call(
        case,
        "boundaries",
        function,
        lambda elements: isinstance(elements, np.ndarray) and elements.dtype == bool,
        "return an array of booleans in the shape of the module's output from the function",
    )


def require_plan(case: Case, plan: list) -> None:
    """Raises `UserError` for an item of a plan that is no batch."""
    for item in plan:
        fix = "yield parity.PlannedBatch(name, purpose, inputs)"
        _require(case, "plan", item, lambda item: isinstance(item, PlannedBatch), fix)
        for field in ("name", "purpose"):
            text = "give the batch a text that tells it from others"
            _require(
                case, f"plan: {field}", getattr(item, field), lambda own: isinstance(own, str) and own, text
            )


def _require_rows(case: Case, arrays: Arrays, size: int) -> None:
    """Raises `UserError` where `rows` gives other rows than the one asked for."""
    row = _call(
        case,
        "rows",
        lambda: case.rows(arrays, slice(0, 1)),
        lambda result: result is None or (_is_named(result) and set(result) == set(arrays)),
        "return the same arrays with the given rows, or None",
    )
    if row is None or size < 2:
        return
    with of_case(case, "batch_size_of"):
        count = case.batch_size_of(row)
    if count != 1:
        raise UserError(
            "rows",
            f"{count} of {size} rows",
            f"are no single row of {case.name}",
            "return the rows asked for",
        )


def _require_sizes(case: Case, arrays: Arrays, batch: int) -> None:
    """Raises `UserError` where `dynamic_sizes` gives no least size, or names an axis that is not there."""
    sizes = _call(
        case,
        "dynamic_sizes",
        lambda: case.dynamic_sizes(arrays),
        _is_mapping,
        "return a dictionary of least sizes",
    )
    shapes = {
        dotted(path): leaf.shape
        for path, leaf in leaves(arguments_of(case, arrays))
        if isinstance(leaf, np.ndarray)
    }
    axes = {(name, axis): size for name, shape in shapes.items() for axis, size in enumerate(shape)}
    firsts = [size for (_, axis), size in axes.items() if axis == 0]
    # The default names the batch, whose size may be that of no axis.
    largest: dict[Any, int] = {size: size for size in (*firsts, batch)} | axes
    for key, least in sizes.items():
        field = f"dynamic_sizes[{key!r}]"
        if key not in largest:
            known = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            fix = f"name the size of a first axis, or (argument, axis), of {known}"
            raise UserError(field, least, f"is of no axis of {case.name}'s arguments", fix)
        if not (isinstance(least, (int, np.integer)) and 0 <= least <= largest[key]):
            raise UserError(field, least, "is no least size", f"give 0 to {largest[key]}, the batch's size")


def _require_module(case: Case, name: str) -> None:
    """Raises `UserError` for an import path that no module has."""
    try:
        # A program's own file is imported as `__main__`, which has no spec.
        is_there = name in sys.modules or importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        fix = f"give {case.name} import paths of the port's modules"
        raise UserError("port_modules", name, "is no module that Python finds", fix)


def _call(case: Case, method: str, call: Callable[[], Any], is_right: Callable[[Any], bool], fix: str) -> Any:
    with of_case(case, method):
        result = call()
    _require(case, method, result, is_right, fix)
    return result


def _require(case: Case, field: str, value: Any, is_right: Callable[[Any], bool], fix: str) -> None:
    if not is_right(value):
        raise UserError(field, _told(value), f"is no result of {case.name} that fits", fix)


def _is_scale(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return bool((value.isfinite() & (value >= 0.0)).all())
    return isinstance(value, (int, float, np.number)) and 0.0 <= value < math.inf


def _fits(value: Any, made: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and (value.shape, value.dtype) == (made.shape, made.dtype)


def _told(value: Any) -> str:
    """A value in words: the type and shape of an array, or a short text."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} {value.shape}"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_told(value: Any) -> bool:
    return _is_named(value) and all(isinstance(reason, str) for reason in value.values())


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)
