"""Cases from their names: import paths, and the list that a command line offers."""

from __future__ import annotations

import copy
import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, get_type_hints

from parity.base.errors import UserError
from parity.case.misspelt import require_known_attributes
from parity.case.model import Case
from parity.case.reference import CaseReference
from parity.case.users_code import told, users_code

_FIX = "name a Case, or a class or function that makes one"
_LISTED = 3
"""Cases of a module that a message names."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Listed:
    """A case as a list shows it, and whether a plain run includes it."""

    name: str
    description: str
    default: bool


@dataclass(frozen=True)
class Registry:
    """The cases that a command line offers by name.

    Attributes:
        cases: All of them, in the order of the list.
        load: The case of a name or of a file's path. Raises `UserError`.
        module: The module that makes all of them, and leaves CUDA alone when it is imported; empty if there
            is none.
    """

    cases: Callable[[], Sequence[Listed]]
    load: Callable[[str], Case]
    module: str = ""


def load_case(reference: CaseReference) -> Case:
    """Import and build the case.

    Raises:
        UserError: A target that cannot be imported or is no case, or values that it refuses.
    """
    if not isinstance(reference, CaseReference):
        fix = "give parity.CaseReference(target='package.module:attribute')"
        raise UserError("reference", reference, "is no parity.CaseReference", fix)
    case = _built(reference, _imported(reference.target))
    if not isinstance(case, Case):
        _refuse(
            reference, f"is {_kind(case)}, not a parity.Case", "name a Case, or a function that returns one"
        )
    require_facts(case, reference.target)
    require_known_attributes(case)
    if reference.name not in ("", case.name):
        _refuse(reference, f"makes {case.name}, not {reference.name}", "restore its code, or run again")
    case = copy.copy(case)
    update = {"name": case.name, "description": case.description, "seed": None, "batch_size": None}
    case._reference = reference.model_copy(update=update)
    if reference.seed is None and reference.batch_size is None:
        return case
    return case.with_overrides(seed=reference.seed, batch_size=reference.batch_size)


def require_facts(case: Case, told: str) -> None:
    """Raises `UserError` for a name, a text or a number that is none; `told` stands for the case."""
    name = getattr(case, "name", None)
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        fix = "give it a name of letters, digits and underscores"
        raise UserError("case", told, f"has the name {name!r}", fix)
    if not isinstance(case.description, str):
        raise UserError("case", told, f"has the description {case.description!r}", "give it a text")
    for size, value, least in (("seed", case.seed, 0), ("batch_size", case.batch_size, 1)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            problem = f"has the {size} {value!r}"
            raise UserError("case", told, problem, f"give it a whole number, {least} or more")


def _built(reference: CaseReference, attribute: Any) -> Any:
    if isinstance(attribute, Case):
        if reference.values:
            _refuse(reference, "is a Case and takes no values", "name its class, or leave the values out")
        return attribute
    makes_any = isinstance(attribute, type) and not issubclass(attribute, Case)
    if makes_any or not callable(attribute):
        _refuse(reference, f"is {_kind(attribute)}, not a parity.Case", _FIX)
    if reference.values and not _makes_cases(attribute):
        _refuse(reference, "takes values and is not declared to return a Case", "annotate it with `-> Case`")
    try:
        with users_code("case", reference.target, "cannot be made", TypeError):
            return attribute(**reference.values)
    except TypeError as error:
        is_abstract = inspect.isabstract(attribute)
        fix = "write the methods that it lacks" if is_abstract else "give the values that it takes"
        _refuse(reference, f"cannot be made ({error})", fix)


def _makes_cases(attribute: Any) -> bool:
    """Whether it is a class of cases, or a function that is declared to return one.

    A saved run of somebody else may name any function with any values.
    """
    try:
        result = attribute if isinstance(attribute, type) else get_type_hints(attribute).get("return")
    except (NameError, TypeError, AttributeError):
        return False
    return isinstance(result, type) and issubclass(result, Case)


def _refuse(reference: CaseReference, problem: str, fix: str) -> NoReturn:
    raise UserError("case", reference.target, problem, fix)


def _imported(target: str) -> Any:
    """The attribute of a target. Raises `UserError`."""
    if not target:
        raise UserError(
            "case",
            "without an import path",
            "holds objects of an earlier process",
            "compare the models again",
        )
    module, colon, attribute = target.partition(":")
    file = Path(module if module.endswith(".py") else f"{module}.py")
    if ("/" in module or module.endswith(".py")) and file.is_file():
        path = file.with_suffix("")
        # The present folder is on Python's path; another one is not.
        is_inside = not path.is_absolute() and ".." not in path.parts
        fix = f"write {'.'.join(path.parts)}" if is_inside else f"in its folder, write {path.name}"
        raise UserError("case", target, "names a file, and no module", f"{fix}:{attribute or 'attribute'}")
    if not (module and colon and attribute) or module.startswith("."):
        example = f", such as {module}:case" if re.fullmatch(r"\w+(\.\w+)*", module) else ""
        fix = f"write it as package.module:attribute{example}"
        raise UserError("case", target, "is no import path", fix)
    value: Any = _module(module, target)
    for part in attribute.split("."):
        if not hasattr(value, part):
            cases = [name for name, own in vars(value).items() if _is_of_cases(own)]
            near = difflib.get_close_matches(part, cases or dir(value), n=1)
            known = ", ".join(cases[:_LISTED]) or f"one that {module} defines"
            fix = f"write {near[0]}" if near else f"name {known}"
            own = Path(*module.split(".")).with_suffix(".py")
            file = getattr(value, "__file__", None)
            if file is None and hasattr(value, "__path__"):
                # Python takes any folder of that name for a package.
                problem = f"finds the folder {next(iter(value.__path__))}, which has no code of that name"
                raise UserError(
                    "case", target, problem, f"call it in the folder of {own}, or rename one of both"
                )
            if file and own.is_file() and own.resolve() != Path(file).resolve():
                fix = f"rename {own}: Python finds {file} by that name"
            raise UserError("case", target, f"has no attribute {part!r}", fix)
        value = getattr(value, part)
    return value


def _is_of_cases(value: Any) -> bool:
    """Whether an attribute is a case, or a class of cases that is not the engine's."""
    if isinstance(value, type):
        return issubclass(value, Case) and not value.__module__.startswith("parity.")
    return isinstance(value, Case)


def _module(name: str, target: str) -> ModuleType:
    try:
        with users_code("case", target, "cannot be imported", ImportError):
            return importlib.import_module(name)
    except ImportError as error:
        fix = "check the name and the Python path"
        if isinstance(error, ModuleNotFoundError) and not f"{name}.".startswith(f"{error.name}."):
            fix = f"install {error.name}, which its code imports, or correct that import"
        raise UserError("case", target, f"cannot be imported ({error})", fix) from error
    except BaseException as error:
        # A kind of error that the module itself defines may be no `Exception`.
        if type(error).__module__ != name:
            raise
        raise UserError("case", target, f"cannot be imported ({told(error)})", "correct that code") from error


def _kind(value: Any) -> str:
    return f"the class {value.__qualname__}" if isinstance(value, type) else f"of type {type(value).__name__}"
