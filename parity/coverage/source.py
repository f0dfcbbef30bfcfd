"""Changed source in the running port.

The functions and methods of the port stay the same objects, wherever they are imported. Only their code is
exchanged. Nothing is written to disk, and no module is imported twice.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import nvtripy
import torch

from parity.capture.tripy_hooks import named_modules
from parity.case import Case


@dataclass(frozen=True)
class PortCode:
    """The Python code of a port.

    Attributes:
        modules: Import paths of its modules.
        names: By module, the qualified names of its functions and classes; None where all of them count.
        without_file: Names of its classes that are in no file, as those of an interactive session.
    """

    modules: tuple[str, ...]
    names: Mapping[str, Collection[str]] | None = None
    without_file: tuple[str, ...] = ()

    def has(self, module: str, place: str) -> bool:
        """Whether a function or method is the port's, by its qualified name without `<locals>`."""
        if self.names is None:
            return True
        return any(place == name or place.startswith(f"{name}.") for name in self.names.get(module, ()))


def port_code(case: Case) -> PortCode:
    """The Python code of a case's port.

    The case may list its modules. By default they are the modules of the port's classes and the imported
    modules of their packages. Classes of the port count there, with the functions and classes that they name;
    the reference, the case and other models beside them do not.
    """
    listed = tuple(case.port_modules())
    if listed:
        return PortCode(listed)
    model = case.build_port(nvtripy.float32)
    parts = [model, *(module for _, module in named_modules(model))]
    own = [type(part) for part in parts if type(part).__module__.partition(".")[0] != nvtripy.__name__]
    received = [value for part in parts for value in vars(part).values() if isinstance(value, FunctionType)]
    modules = _with_packages({one.__module__ for one in own})
    names = named_by([*own, *received], modules)
    without_file = {one.__name__ for one in own if one.__module__ not in modules}
    return PortCode(tuple(sorted(names)), names, tuple(sorted(without_file)))


def _with_packages(modules: Set[str]) -> set[str]:
    """Imported modules with a file: some modules, and those of their packages."""
    packages = {name.rpartition(".")[0] for name in modules} - {""}
    return {
        name
        for name, module in list(sys.modules.items())
        if (name in modules or name.rpartition(".")[0] in packages) and getattr(module, "__file__", None)
    }


def named_by(roots: Iterable[Any], modules: Collection[str]) -> dict[str, set[str]]:
    """Classes and functions with the functions and classes that their code names, directly or not.

    Args:
        roots: The classes and functions.
        modules: Import paths of modules. Code elsewhere is left out.

    Returns:
        Qualified names without `<locals>`, by module.
    """
    names: dict[str, set[str]] = {}
    waiting: list[Any] = list(roots)
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            waiting += value
        elif isinstance(value, functools.partial):
            waiting.append(value.func)
        elif isinstance(value := _plain(value), (type, FunctionType)) and value.__module__ in modules:
            if isinstance(value, type) and issubclass(value, (torch.nn.Module, Case)):
                continue
            name = value.__qualname__.replace("<locals>.", "")
            names.setdefault(value.__module__, set()).add(name)
            waiting += _of_class(value) if isinstance(value, type) else _of_function(value)
    # A class's name stands for its methods.
    return {
        module: {name for name in own if name.rpartition(".")[0] not in own} for module, own in names.items()
    }


def _of_class(owner: type) -> list[Any]:
    return [*owner.__bases__, *vars(owner).values()]


def _of_function(function: FunctionType) -> Iterator[Any]:
    """The values of the global and enclosing names in a function's code."""
    yield from (cell.cell_contents for cell in function.__closure__ or () if _is_set(cell))
    codes, words = [function.__code__], set[str]()
    while codes:
        code = codes.pop()
        words.update(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    for word in words & function.__globals__.keys():
        value = function.__globals__[word]
        if isinstance(value, ModuleType):
            yield from (vars(value)[name] for name in words & vars(value).keys())
        else:
            yield value


def _is_set(cell: CellType) -> bool:
    """Whether an enclosing name has a value by now."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def short_name(module: str) -> str:
    """An import path without its top package."""
    return module.partition(".")[2] or module


def source_of(module: str) -> str:
    """Source of a module of the port."""
    return Path(path_of(module)).read_text()


def path_of(module: str) -> str:
    """Path of a module's file, as in its code objects."""
    path = importlib.import_module(module).__file__
    assert path is not None
    return path


@functools.cache
def functions(module: str) -> dict[str, FunctionType]:
    """Functions and methods that a module defines, by their qualified names."""
    functions_by_name: dict[str, FunctionType] = {}
    path = path_of(module)

    def collect(owner: Any) -> None:
        for member in vars(owner).values():
            if isinstance(member, ModuleType):  # nvtripy searches long for an attribute that it lacks
                continue
            function = _plain(member)
            if isinstance(function, FunctionType) and function.__code__.co_filename == path:
                functions_by_name[function.__qualname__] = function
            elif isinstance(member, type) and member.__module__ == module:
                collect(member)

    collect(importlib.import_module(module))
    return functions_by_name


def _plain(member: Any) -> Any:
    """The function inside a property, a static or class method, or a wrapping decorator."""
    if isinstance(member, property):
        member = member.fget
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    return getattr(member, "__wrapped__", member)


class CannotApply(Exception):
    """Changed source that changes no existing function."""


@contextlib.contextmanager
def swapped(module: str, tree: ast.Module) -> Iterator[None]:
    """Inside, the port runs with `module` as in `tree`. Raises `CannotApply`, as `exchanged`."""
    with exchanged(module, codes_of(module, tree)):
        yield


def codes_of(module: str, tree: ast.Module) -> dict[str, CodeType]:
    """Code of the functions and methods of a module as in `tree`, by their qualified names."""
    return dict(_codes(compile(ast.fix_missing_locations(tree), path_of(module), "exec"), ""))


@contextlib.contextmanager
def exchanged(module: str, new: Mapping[str, CodeType]) -> Iterator[None]:
    """Inside, the functions of a module have other code.

    Args:
        module: Import path of the module.
        new: See `codes_of`.

    Raises:
        CannotApply: No existing function has changed, or the new code does not fit into the old function.
    """
    old = {name: function.__code__ for name, function in functions(module).items()}
    changed = [name for name, code in old.items() if name in new and new[name] != code]
    if not changed:
        raise CannotApply("the change is in no function")
    try:
        for name in changed:
            try:
                functions(module)[name].__code__ = new[name]
            except ValueError as error:  # another number of variables of enclosing functions
                raise CannotApply(str(error)) from error
        yield
    finally:
        for name, code in old.items():
            functions(module)[name].__code__ = code


def _codes(code: CodeType, prefix: str) -> Iterator[tuple[str, CodeType]]:
    """Code of the functions of a module and of its classes' methods, by qualified name."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and not constant.co_name.startswith("<"):
            name = f"{prefix}{constant.co_name}"
            yield name, constant
            if not constant.co_flags & inspect.CO_OPTIMIZED:  # a class's body, not a function's
                yield from _codes(constant, f"{name}.")
