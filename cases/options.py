"""Options of a case, from the schema of its configuration, and what no input of any case can ask.

A literal, a boolean and an enumeration have their choices. An optional field may be left out. A number with a
default has the default or another value; a number without a default is a size and no option.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from configs import CaseConfig
from parity.base.strict_yaml import parse_yaml
from parity.case import Option

_NO_OPTIONS = ("seed",)
"""Fields whose values are all alike."""


def options_of(config: CaseConfig) -> dict[str, Option]:
    """The options of a model and its input with the choices of one configuration, by name."""
    options = {}
    for part in ("model", "input"):
        values = getattr(config, part)
        for name, field in type(values).model_fields.items():
            option = None if name in _NO_OPTIONS else _option(field, getattr(values, name))
            if option is not None:
                options[f"{config.family}.{part}.{name}"] = option
    return options


def _option(field: FieldInfo, value: Any) -> Option | None:
    """The option of a field; None for a size without a default."""
    kind, is_optional = _kind(field.annotation)
    choices = tuple(map(str, get_args(kind))) if get_origin(kind) is Literal else ()
    if is_optional:
        is_set = str(value) if choices else "set"
        return Option("left out" if value is None else is_set, ("left out", *(choices or ("set",))))
    if choices:
        return Option(str(value), choices)
    if kind is bool:
        return Option(str(value).lower(), ("false", "true"))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Option(value.name, tuple(member.name for member in kind))
    if field.is_required() or field.default is None:
        return None
    return Option("default" if value == field.default else "other", ("default", "other"))


def _kind(annotation: Any) -> tuple[Any, bool]:
    """The type of an annotation without its metadata and without None, and whether None was in it."""
    if get_origin(annotation) in (Union, types.UnionType):
        left = [argument for argument in get_args(annotation) if argument is not type(None)]
        return (_kind(left[0])[0] if len(left) == 1 else annotation), len(left) < len(get_args(annotation))
    if hasattr(annotation, "__metadata__"):
        return _kind(get_args(annotation)[0])
    return annotation, False


@functools.cache
def cannot_be_asked() -> Mapping[str, str]:
    """The reviewed list of answers that no input can give, with the reasons; see `parity.Case`."""
    path = Path(__file__).with_name("cannot_be_asked.yaml")
    return {
        place: entry["reason"]
        for entry in parse_yaml(path.read_text(encoding="utf-8"))
        for place in entry["places"]
    }
