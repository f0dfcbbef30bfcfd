"""Changed source in the running port.

The functions and methods of the port stay the same objects, wherever they are imported. Only their code is
exchanged. Nothing is written to disk, and no module is imported twice.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import nvtripy

from parity.capture.tripy_hooks import named_modules
from parity.case import Case


def port_modules(case: Case) -> tuple[str, ...]:
    """Import paths of the Python modules with the port's code.

    The case may list them. By default they are the modules that define the port's classes, with the imported
    modules of their packages.
    """
    return tuple(case.port_modules()) or _modules_of_classes(case.build_port(nvtripy.float32))


def _modules_of_classes(model: nvtripy.Module) -> tuple[str, ...]:
    objects = [model, *(module for _, module in named_modules(model))]
    names = {type(module).__module__ for module in objects}
    own = {name for name in names if name.partition(".")[0] != nvtripy.__name__}
    packages = {name.rpartition(".")[0] for name in own} - {""}
    beside = {
        name
        for name, module in sys.modules.items()
        if name.rpartition(".")[0] in packages and getattr(module, "__file__", None)
    }
    return tuple(sorted(own | beside))


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


@cache
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
