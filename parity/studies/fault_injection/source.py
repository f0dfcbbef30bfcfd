"""Putting changed source into the running port, and taking it out again.

The functions and methods of the port stay the objects that they are, wherever they have been imported to;
only their code is exchanged. Nothing is written, and nothing is imported twice.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import tripy_port

_NOT_THE_MODEL = frozenset({"gaps", "validation"})


@cache
def port_files() -> dict[str, ModuleType]:
    """The port's modules by the name of their file, those left out that compute nothing."""
    names = [info.name for info in pkgutil.iter_modules(tripy_port.__path__)]
    return {
        name: importlib.import_module(f"tripy_port.{name}") for name in names if name not in _NOT_THE_MODEL
    }


def source_of(file: str) -> str:
    """The text of a file of the port."""
    return Path(_path(file)).read_text()


def _path(file: str) -> str:
    path = port_files()[file].__file__
    assert path is not None
    return path


@cache
def functions(file: str) -> dict[str, FunctionType]:
    """Functions and methods that a file defines, by their qualified names."""
    module = port_files()[file]
    found: dict[str, FunctionType] = {}

    def collect(owner: Any) -> None:
        for member in vars(owner).values():
            function = _plain(member)
            if isinstance(function, FunctionType) and function.__code__.co_filename == module.__file__:
                found[function.__qualname__] = function
            elif isinstance(member, type) and member.__module__ == module.__name__:
                collect(member)

    collect(module)
    return found


def _plain(member: Any) -> Any:
    """The function inside a property, a static or class method, or a decorator that says what it wraps."""
    if isinstance(member, property):
        member = member.fget
    if isinstance(member, (staticmethod, classmethod)):
        member = member.__func__
    return getattr(member, "__wrapped__", member)


class CannotApply(Exception):
    """Changed source that is no change of functions that exist."""


@contextlib.contextmanager
def swapped(file: str, tree: ast.Module) -> Iterator[None]:
    """Inside, the port runs with `file` as in `tree`.

    Raises:
        CannotApply: Nothing that exists has changed, or the new code does not fit into the old function.
    """
    old = {name: function.__code__ for name, function in functions(file).items()}
    new = dict(_codes(compile(ast.fix_missing_locations(tree), _path(file), "exec"), ""))
    changed = [name for name, code in old.items() if name in new and new[name] != code]
    if not changed:
        raise CannotApply("the change is in no function")
    try:
        for name in changed:
            try:
                functions(file)[name].__code__ = new[name]
            except ValueError as error:  # another number of variables of enclosing functions
                raise CannotApply(str(error)) from error
        yield
    finally:
        for name, code in old.items():
            functions(file)[name].__code__ = code


def _codes(code: CodeType, prefix: str) -> Iterator[tuple[str, CodeType]]:
    """Code of the functions of a module, and of its classes' methods, by qualified name."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and not constant.co_name.startswith("<"):
            name = f"{prefix}{constant.co_name}"
            yield name, constant
            if not constant.co_flags & inspect.CO_OPTIMIZED:  # a class's body, not a function's
                yield from _codes(constant, f"{name}.")
