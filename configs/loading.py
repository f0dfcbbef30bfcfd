"""Reading of YAML files as :class:`CaseConfig`, with the fix in every error."""

from __future__ import annotations

import difflib
import errno
import functools
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from configs.schema import CASE_TYPES, CaseConfig
from parity.base.strict_yaml import YAMLProblem, parse_yaml

_FOLDER = Path(__file__).parent
_SUFFIXES = (".yaml", ".yml")


class ConfigError(ValueError):
    """A case that cannot be used. The message has one line a problem: field, value, fix."""


def list_cases() -> tuple[str, ...]:
    """Names of the cases that come with the project, in alphabetical order."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def load_case(name_or_path: str | Path) -> CaseConfig:
    """Reads a case by its name, or from a YAML file of the caller's own.

    Text that ends in .yaml or .yml, or that contains a path separator, is a path; all else is a name.

    Raises:
        ConfigError: an unknown name (with the closest one), an unreadable file, text that is no YAML mapping,
            a duplicate key. All problems of the values are in one message.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(_SUFFIXES) or "/" in text or "\\" in text:
        return _parse(Path(name_or_path))
    if text not in list_cases():
        raise ConfigError(
            f"case: {text!r} is not known; {_closest(text, list_cases())}"
            f"use one of {', '.join(list_cases())}, or the path of a .yaml file"
        )
    return _shipped(text)


def case_from_values(values: Mapping[str, Any]) -> CaseConfig:
    """A case from plain values, as its ``model_dump(mode="json")`` gives them.

    Raises:
        ConfigError: as for a file with these values.
    """
    return _validate(dict(values), source=f"case {values.get('name', '')}".strip())


def with_input(case: CaseConfig, **changes: Any) -> CaseConfig:
    """The same case with some fields of its input changed, and checked again as a whole.

    Raises:
        ConfigError: as for a file with these values.
    """
    return with_fields(case, {f"input.{name}": value for name, value in changes.items()})


def with_fields(case: CaseConfig, changes: Mapping[str, Any]) -> CaseConfig:
    """The same case with some fields changed, named as in errors (`model.num_blocks`), and checked again.

    Explicit lengths belong to a batch size: changing ``input.batch_size`` drops them.

    Raises:
        ConfigError: as for a file with these values.
    """
    values = case.model_dump()
    for name, value in changes.items():
        part, field = name.split(".")
        values[part][field] = value
    if values["input"]["batch_size"] != case.input.batch_size and "input.lengths" not in changes:
        values["input"].pop("lengths", None)
    return _validate(values, source=f"case {case.name}")


@functools.cache
def _shipped(name: str) -> CaseConfig:
    """A case that comes with the project. Cases are frozen, so a process reads each file once."""
    return _parse(_FOLDER / f"{name}.yaml")


def _parse(path: Path) -> CaseConfig:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            # The end of a pipe or a device may never come.
            raise OSError(errno.EINVAL, "it is no regular file")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(
            f"case: {str(path)!r} cannot be read ({reason}); give the path of a readable YAML file"
        ) from error
    try:
        values = parse_yaml(text)
    except YAMLProblem as error:
        raise ConfigError(f"case: {str(path)!r} is not valid YAML ({error}); correct that line") from error
    if not isinstance(values, dict):
        raise ConfigError(
            f"case: {str(path)!r} holds {_kind(values)}, not a mapping; "
            f"start it with {', '.join(f'{key}:' for key in CaseConfig.model_fields)}"
        )
    return _validate(values, source=str(path))


def _validate(values: dict[str, Any], source: str) -> CaseConfig:
    family = values.get("family")
    if not isinstance(family, str) or family not in CASE_TYPES:
        # The keys depend on the family, so no other value can be checked.
        known = tuple(CASE_TYPES)
        problem = "missing; " if "family" not in values else f"{reprlib.repr(family)} is not a choice; "
        hint = _closest(family, known) if isinstance(family, str) else ""
        raise ConfigError(f"{source}: 1 to correct\nfamily: {problem}{hint}use one of {', '.join(known)}")
    case_type = CASE_TYPES[family]
    try:
        return case_type.model_validate(values)
    except ValidationError as error:
        lines = [line for detail in error.errors(include_url=False) for line in _explain(detail, case_type)]
        raise ConfigError("\n".join([f"{source}: {len(lines)} to correct", *lines])) from error


#: By pydantic's kind of error: the value's relation to the bound, the advice, the bound's key in the context.
_BOUNDS = {
    "greater_than_equal": ("below", "at least", "ge"),
    "greater_than": ("not above", "more than", "gt"),
    "less_than_equal": ("above", "at most", "le"),
    "less_than": ("not below", "less than", "lt"),
}
_WANTED = {
    "int_type": "a whole number, without quotes or a point",
    "int_from_float": "a whole number, without quotes or a point",
    "float_type": "a number, without quotes",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "model_type": "a mapping",
}


def _explain(detail: ErrorDetails, root: type[BaseModel]) -> list[str]:
    """One line a problem, in the form ``field: value problem; fix``. ``root`` is the type of the case."""
    location, kind, context = detail["loc"], detail["type"], detail.get("ctx", {})
    field, entry = _dotted(location), detail["input"]
    value = reprlib.repr(entry)
    if kind == "missing":
        return [f"{field}: missing; give {_description(location, root) or 'it'}"]
    if kind in ("extra_forbidden", "invalid_key"):
        known = list(_model_at(location[:-1], root).model_fields)
        if kind == "invalid_key":
            return [
                f"{field}: {value} is {_kind(entry)}, and keys are text; the keys here are {', '.join(known)}"
            ]
        return [
            f"{field}: {value} is under an unknown key; {_closest(str(location[-1]), known)}"
            f"the keys here are {', '.join(known)}"
        ]
    if kind == "value_error":
        # The schema's own message has field, value and fix; names of outer fields are added here.
        lines = str(context["error"]).split("\n")
        if (
            location
            and location[-1] in _model_at(location[:-1], root).model_fields
            and not _is_model(location, root)
        ):
            return [f"{field}: {line}" for line in lines]
        return [f"{field}.{line}" if field else line for line in lines]
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        return [
            f"{field}: {value} is not a choice; {_closest(str(entry), choices)}"
            f"use one of {', '.join(choices)}"
        ]
    if kind in _BOUNDS:
        relation, advice, key = _BOUNDS[kind]
        return [f"{field}: {value} is {relation} {context[key]}; give {advice} {context[key]}"]
    wanted = _WANTED.get(kind, _description(location, root) or detail["msg"])
    return [f"{field}: {value} ({_kind(entry)}) does not fit; give {wanted}"]


def _model_at(location: tuple[int | str, ...], root: type[BaseModel]) -> type[BaseModel]:
    model = root
    for part in location:
        annotation = model.model_fields[part].annotation
        assert isinstance(annotation, type), location
        model = annotation
    return model


def _is_model(location: tuple[int | str, ...], root: type[BaseModel]) -> bool:
    annotation = _model_at(location[:-1], root).model_fields[location[-1]].annotation
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _description(location: tuple[int | str, ...], root: type[BaseModel]) -> str | None:
    names = [part for part in location if isinstance(part, str)]
    return _model_at(tuple(names[:-1]), root).model_fields[names[-1]].description if names else None


def _dotted(location: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _closest(word: str, known: tuple[str, ...] | list[str]) -> str:
    match = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {match[0]!r}? " if match else ""


def _kind(value: Any) -> str:
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
        type(None): "nothing",
    }
    return names.get(type(value), type(value).__name__)
