"""Pairs of modules and tensors of both sides: names, weights, and modules that only one side has."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from parity.base.errors import UserError, is_whole
from parity.case.patterns import matched, matches_any, renamed, stars

INERT = ("Identity", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout")
"""Classes of PyTorch that return their input in evaluation."""
RETURNS_INPUT = "returns its input in evaluation"
"""The reason why a port has no inert module."""
SEQUENCE = "Sequential"
"""Class of PyTorch that only calls its modules in order, as a port may do by itself."""
UNKNOWN = "unknown"
"""Stands for the class of a module that the port alone has."""
ABSENT = (
    "name it in `functional` if a function of the port computes it, "
    "or set `one_sided = True` if the sides are divided into other modules"
)
"""The remedies for a module that the port does not have."""


@dataclass(frozen=True, init=False)
class From:
    """The source of one of the port's tensors in the reference's state dict.

    Named tensors are joined, then split, then transposed.

    Attributes:
        names: Names of the reference's tensors. Stars stand for the texts of the pattern's stars.
        transpose: Whether to swap the last two axes, or the order of all axes.
        split: Place of the part, counted from 0, and number of equal parts; None for the whole tensor.
        axis: Axis of the join and of the split.
    """

    names: tuple[str, ...]
    transpose: bool | tuple[int, ...]
    split: tuple[int, int] | None
    axis: int

    def __init__(
        self,
        *names: str,
        transpose: bool | Sequence[int] = False,
        split: tuple[int, int] | None = None,
        axis: int = 0,
    ) -> None:
        if not names:
            raise UserError("From", "()", "names no tensor", "give the name of a tensor of the reference")
        for name in names:
            if not isinstance(name, str):
                raise UserError(
                    "From", repr(name), "is no name", "give the names of tensors of the reference"
                )
        is_pair = isinstance(split, (tuple, list)) and len(split) == 2 and all(map(is_whole, split))
        if split is not None and not (is_pair and 0 <= split[0] < split[1]):
            raise UserError(
                "From.split", split, "is no part of a tensor", "give (part, parts), such as (0, 3)"
            )
        is_order = isinstance(transpose, bool) or (
            isinstance(transpose, Sequence)
            and all(map(is_whole, transpose))
            and sorted(transpose) == list(range(len(transpose)))
        )
        if not is_order:
            raise UserError(
                "From.transpose",
                transpose,
                "is no order of axes",
                "give True, or each axis once, such as (0, 2, 1)",
            )
        if not is_whole(axis):
            raise UserError("From.axis", repr(axis), "is no axis", "give its number, such as 0")
        if axis != 0 and len(names) == 1 and split is None:
            fix = "name the tensors to join, give split, or leave axis out"
            raise UserError("From.axis", axis, "has no effect: nothing is joined or split", fix)
        order = transpose if isinstance(transpose, bool) else tuple(transpose)
        for field, value in (("names", names), ("transpose", order), ("split", split), ("axis", axis)):
            object.__setattr__(self, field, value)

    @property
    def is_whole(self) -> bool:
        """Whether the port's tensor is the reference's as it is."""
        return len(self.names) == 1 and not self.transpose and self.split is None


def check_paths(rules: Mapping[str, str], paths: Mapping[str, str]) -> None:
    """Raises `UserError` for a rule without a module, and for two modules of one path.

    Args:
        rules: The option `names`.
        paths: Path in the reference by path in the port, of all modules of the port.
    """
    for pattern in rules:
        if not any(matched(pattern, path) is not None for path in paths):
            raise UserError(
                "names",
                pattern,
                "matches no module of the port",
                f"use paths such as {', '.join(list(paths)[:3])}",
            )
    for path, own in paths.items():
        other = next(other for other in paths if paths[other] == own)
        if other != path:
            raise UserError("names", own, f"is the path of both {other} and {path}", "name them apart")


def overrides_call(module: Any) -> bool:
    """Whether the class of a module, of either side, has a `__call__` of its own in place of `forward`."""
    owner = next(cls for cls in type(module).__mro__ if "__call__" in vars(cls))
    return owner.__module__.partition(".")[0] not in ("torch", "nvtripy")


def function_of(module: Any) -> Callable[..., Any]:
    """The function that a call of a module, of either side, runs."""
    return functools.partial(type(module).__call__, module) if overrides_call(module) else module.forward


def entry_of(model: Any, entry: str) -> Callable[..., Any]:
    """The method of a model by which it is called; the model itself if it overrides `__call__`."""
    return model if entry == "forward" and overrides_call(model) else getattr(model, entry)


def require_fitting(model: Any, entry: str, arguments: Mapping[str, Any], field: str = "inputs") -> None:
    """Raises `UserError` for arguments that the entry of a model does not take, or for a missing entry.

    Args:
        model: The PyTorch model.
        entry: The name of its method.
        arguments: Keyword arguments.
        field: Name of the arguments' origin in the error.
    """
    if not (isinstance(entry, str) and callable(getattr(model, entry, None))):
        raise UserError("entry", entry, "is no method of the PyTorch model", "name one of its methods")
    signature = inspect.signature(entry_of(model, entry))
    try:
        signature.bind(**arguments)
    except TypeError as error:
        problem = f"do not fit {entry}{signature} ({error})"
        raise UserError(field, ", ".join(arguments), problem, "name the inputs as its parameters") from error


def _require_pattern(field: str, pattern: Any) -> None:
    """Raises `UserError` for an entry of an option that is no text."""
    if not isinstance(pattern, str):
        raise UserError(field, repr(pattern), "is no name", "give names of modules or tensors, as texts")


class Pairing:
    """The options of a case that pair both sides. Patterns have stars, see `parity.case.patterns`."""

    OPTIONS = ("names", "weights", "unused", "functional", "inert", "initial", "squeeze", "tolerance")

    names: Mapping[str, str] = {}
    """Path in the reference by path in the port, for other names. A rule holds for all modules inside."""
    weights: Mapping[str, str | From | None] = {}
    """Name of the port's tensor to its source in the reference; None for a tensor that the port sets itself.
    The first pattern that matches decides. Tensors without one have the reference's names, under `names`."""
    unused: Sequence[str] = ()
    """Names of the reference's tensors that the port does not need, such as a stored mask."""
    functional: Sequence[str] = ()
    """Classes or paths of the reference's modules that the port computes by functions."""
    inert: Sequence[str] = ()
    """Classes or paths of the reference's modules that return their input; those of `INERT` by themselves."""
    one_sided: bool = False
    """Whether a module that only one side has is a note. By default it fails, unless it is a `Sequential`."""
    initial: Literal["sensitive", "own"] = "sensitive"
    """Initial weights: drawn so that every module shows in its output, or those of `build_reference`."""

    squeeze: bool = False
    """Whether leading axes of 1 do not count: the port may have more or fewer of them than the reference."""
    states_rows: bool = True
    """Whether `rows` states that no row depends on another. If not, the reference's rows tell it."""
    tolerance: Mapping[str, float] = {}
    """Largest relative error by path or tap, above the derived limit. The report shows each use in red."""

    def tolerated(self, tap: str, path: str) -> float:
        """The largest relative error that `tolerance` allows at a tap; 0 without a rule."""
        rules = self.tolerance.items()
        return max(
            (error for rule, error in rules if matches_any([rule], tap) or matches_any([rule], path)),
            default=0.0,
        )

    def reference_path(self, path: str) -> str:
        """The path in the reference of a module at a path in the port."""
        return renamed(self.names, path)

    def port_path(self, path: str) -> str:
        """The path in the port of a module at a path in the reference, as far as `names` tells it."""
        inverse = {own: pattern for pattern, own in self.names.items() if stars(own) == stars(pattern)}
        return renamed(inverse, path)

    def absence(self, path: str, kind: str) -> str:
        """The reason why only one side has a module; empty if that is a failure.

        Args:
            path: Its path in the reference.
            kind: Its class, or `UNKNOWN`.
        """
        if kind in INERT or matches_any(self.inert, kind) or matches_any(self.inert, path):
            return RETURNS_INPUT
        if matches_any(self.functional, kind) or matches_any(self.functional, path):
            return "the port computes it by a function"
        if kind == SEQUENCE:
            return "it only calls its modules, and those that the port has are judged"
        if not self.one_sided:
            return ""
        if kind == UNKNOWN:
            return "PyTorch calls no module of this path"
        return "the port has no module of this path"

    def check_options(self) -> None:
        """Raises `UserError` for options that have no meaning."""
        for field in ("names", "weights"):
            if not isinstance(getattr(self, field), Mapping):
                raise UserError(
                    field, getattr(self, field), "is no dictionary", "write {port's name: reference's name}"
                )
            for pattern, source in getattr(self, field).items():
                _require_pattern(field, pattern)
                targets = source.names if isinstance(source, From) else [source] if source is not None else []
                for target in targets:
                    if not isinstance(target, str):
                        raise UserError(
                            f"{field}[{pattern!r}]", target, "is no name", "give the reference's name"
                        )
                    if stars(target) > stars(pattern):
                        raise UserError(
                            f"{field}[{pattern!r}]",
                            target,
                            "has more stars than its pattern",
                            "write a star on the left for each star on the right",
                        )
        if self.initial not in ("sensitive", "own"):
            raise UserError("initial", self.initial, "is not known", "use 'sensitive' or 'own'")
        for field in ("squeeze", "one_sided", "states_rows"):
            if not isinstance(getattr(self, field), bool):
                raise UserError(field, getattr(self, field), "is not known", "use True or False")
        if not isinstance(self.tolerance, Mapping):
            raise UserError("tolerance", self.tolerance, "is for no module", "write {path: relative error}")
        for pattern, error in self.tolerance.items():
            _require_pattern("tolerance", pattern)
            if not (isinstance(error, (int, float)) and 0.0 < error < 1.0):
                raise UserError(
                    f"tolerance[{pattern!r}]",
                    error,
                    "is no relative error",
                    "give more than 0 and less than 1",
                )
        for field in ("unused", "functional", "inert"):
            value: Any = getattr(self, field)
            if isinstance(value, str):
                raise UserError(field, value, "is a text", f"give a sequence, such as ({value!r},)")
            if not isinstance(value, Collection):
                raise UserError(field, repr(value), "is no sequence of names", "give a tuple of names")
            for pattern in value:
                _require_pattern(field, pattern)
